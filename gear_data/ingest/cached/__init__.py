"""Sources that are opened: each is converted once into the cache of this machine."""
