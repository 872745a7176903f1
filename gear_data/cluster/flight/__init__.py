"""Transport `flight`: requests and responses over Arrow Flight (gRPC over TCP).

Why: docs/explanation/decisions/transports.md
"""
