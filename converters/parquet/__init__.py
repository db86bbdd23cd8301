"""Facts of Parquet files that every format shares."""
