"""Journals: finished episodes on disk before they are in shards."""
