"""Indexing of video files: packets are found by demuxing in worker processes.

Nothing is decoded.
"""
