"""Small datasets that the package has, to try it with; `scripts/make_examples.py` makes them."""
