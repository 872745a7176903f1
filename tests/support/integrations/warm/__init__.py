"""Imports that ranks of training scripts share, done once before they are forked."""
