"""Files that hold tables: Parquet, Arrow, text."""
