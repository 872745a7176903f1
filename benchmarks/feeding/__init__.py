"""Parts of benchmarks/feed.py: scenarios, data, contenders, and the report."""
