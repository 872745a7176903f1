"""Training scripts of frameworks, run on several ranks, killed and resumed."""
