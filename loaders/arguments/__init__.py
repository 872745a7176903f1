"""The arguments of a SequenceLoader: groups, checks, and all of them as one value."""
