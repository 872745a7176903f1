"""The sections of benchmarks/gpu.py, one module each, and the helpers they share."""
