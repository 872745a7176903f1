"""Several sources, or splits of a source, as one source."""
