"""Transport `flight`: requests and responses over Arrow Flight (gRPC over TCP)."""
