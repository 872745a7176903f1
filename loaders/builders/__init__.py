"""Batch builders: from a step to a batch of tensors, on the CPU or on a GPU."""
