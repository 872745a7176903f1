"""Cameras: frames become video while an episode is recorded."""
