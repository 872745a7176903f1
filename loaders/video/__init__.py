"""Cameras in batches: which frames a batch needs, and the memory that receives them."""
