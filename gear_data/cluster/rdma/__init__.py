"""Transport `verbs`: reading other nodes' memory by RDMA READ."""
