"""Files of object stores that several processes write: puts with conditions."""
