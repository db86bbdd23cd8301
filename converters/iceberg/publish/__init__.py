"""Writing Iceberg tables over files that are there already: metadata, manifests and delete files."""
