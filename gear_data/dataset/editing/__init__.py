"""Editing a dataset: columns and facts that are added, renamed or dropped."""
