"""Deleted rows as positions in data files, whatever format says so."""
