"""Evaluating policies in environments, with the inputs that they were trained on."""
