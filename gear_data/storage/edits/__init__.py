"""Edits of datasets: other names, fewer columns, further columns and facts, without writing shards again."""
