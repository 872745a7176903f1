"""From any source to GEAR shards: where it is, what format it has, its episodes, and the conversion."""
