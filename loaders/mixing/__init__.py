"""A mixture as a file, and as a table."""
