"""Helpers for tests of threads, of processes and of interrupts."""
