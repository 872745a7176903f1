"""Cameras of a source: their files, from finding them to copying them into a dataset."""
