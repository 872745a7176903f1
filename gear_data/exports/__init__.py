"""Exports: datasets and batches written in formats that other tools read."""
