"""All SQL to a DuckLake catalog: its tables, sessions, reads and commits."""
