"""The dataset folder on disk.

It holds the manifest, tables, statistics, shards and sidecars. `writing` creates them; `remote` reads them from URLs.
"""
