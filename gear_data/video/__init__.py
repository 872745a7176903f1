"""Camera video: indexed once, and decoded by groups of pictures.

A dataset with cameras keeps their files. `index_tables` has where every packet of every file is; `frame_groups` says
which packets a frame needs. So a frame is decoded from a few ranges of bytes, without a container, a seek or an open
file. PyAV decodes (extra `video`); this package imports it when a video is indexed or decoded.
"""
