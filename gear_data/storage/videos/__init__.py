"""The video files of a dataset's cameras."""
