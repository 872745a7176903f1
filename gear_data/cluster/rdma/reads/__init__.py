"""Reads of another node's memory: rows of shards, and bytes of video files."""
