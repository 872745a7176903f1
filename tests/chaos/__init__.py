"""Harnesses that break things on purpose.

CONTRIBUTING.md says where a new one goes.
"""
