"""Examples, and checks of a machine."""
