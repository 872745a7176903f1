"""Server: serves the shards of one node, in a supervised process."""
