"""What a source means, for every format: one module an idea."""
