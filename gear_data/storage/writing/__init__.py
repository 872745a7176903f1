"""Writing a dataset: staging, shards, progress files and file stores."""
