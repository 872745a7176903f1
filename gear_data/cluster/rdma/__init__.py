"""Transport `verbs`: reading other nodes' memory by RDMA READ.

`server` registers a node's columns, and `client` connects to them. `fetch` reads the rows of a request: `span_read`
plans its READs, `work_requests` lays them out, and `queue_pair` posts them.
"""
