"""Client: reads rows of shards from the nodes that hold them."""
