"""Programs of ranks that train while their dataset grows."""
