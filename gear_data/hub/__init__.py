"""Datasets on the HuggingFace hub: push and pull."""
