"""GEAR shards on disk: block (what is written), writer, manifest, reader, columns of variable length, verify."""
