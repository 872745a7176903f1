"""Where a Writer puts finished episodes."""
