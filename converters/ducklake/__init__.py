"""DuckLake 1.0 catalogs."""
