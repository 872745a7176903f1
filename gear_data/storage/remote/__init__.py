"""Files behind fsspec URLs: range reads, object stores, and a local cache."""
