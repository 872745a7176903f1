"""Cameras of an opened dataset: their files, their episodes, and their frames."""
