"""The contenders of benchmarks/writer.py, and its tables."""
