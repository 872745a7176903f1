"""How datasets are merged: their columns, names and files."""
