"""Decoding of camera frames, by groups of pictures.

`FrameReader.read` writes frames of many files into an array. Requests are grouped by file and group, and each group is
decoded once, in threads that release the interpreter lock while FFmpeg works.
"""
