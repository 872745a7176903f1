"""Integrations: loaders in the training frameworks, one module each."""
