"""Generations in a folder of this machine."""
