"""Stages: a loader's datasets, each from a step on, while the datasets grow."""
