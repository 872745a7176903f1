"""Transport `verbs`: reading other nodes' memory by RDMA READ.

`server` registers a node's columns and videos, and `client` connects to them. `fetch` reads the spans of a request:
`reads` plans the READs, `work_requests` lays them out, and `queue_pair` posts them.

Why: docs/explanation/decisions/transports.md
"""
