"""Gato's sequences: values, texts and images as tokens."""
