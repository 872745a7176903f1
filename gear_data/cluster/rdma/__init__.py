"""Reading other nodes' memory by RDMA READ."""
