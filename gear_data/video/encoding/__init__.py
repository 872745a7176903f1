"""Encoding: frames become MP4 files."""
