"""Episodes of writers on other machines: the server that takes them, and its clients."""
