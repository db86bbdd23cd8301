"""DuckDB database files as a source: opened read-only and left as they are."""
