"""Client: reads rows of shards from the nodes that hold them.

`shard_client` is the entry. `fetch_session` runs a request: it retries on replicas, and waits as `retry_policy` says.
`shard_directory` knows which peer holds which shard, and `transports` how each peer is read.
"""
