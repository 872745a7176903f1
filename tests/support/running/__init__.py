"""Helpers for tests of threads and of interrupts."""
