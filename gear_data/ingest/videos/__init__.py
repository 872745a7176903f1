"""Cameras of a source: their files are found, indexed, and put into a dataset."""
