"""Attacks on nodes, on the hub, and on their clients."""
