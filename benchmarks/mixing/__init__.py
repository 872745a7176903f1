"""Parts of benchmarks/mixture.py."""
