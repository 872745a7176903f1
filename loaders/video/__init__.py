"""Cameras in batches: the frames that a batch needs, and their memory."""
