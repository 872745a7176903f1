"""Readers of the source formats, with one module or folder per format."""
