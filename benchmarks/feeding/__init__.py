"""The parts of benchmarks/feed.py: scenarios, data, contenders with their environments, and the report."""
