"""The dataset folder on disk: manifest, tables, statistics, reading and verification of shards, and sidecars."""
