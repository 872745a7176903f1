"""Journals: finished episodes on disk before they are in shards.

Why: docs/explanation/decisions/growing.md
"""
