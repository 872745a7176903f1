"""Reports: a dataset as one HTML page that works without a server and without a network."""
