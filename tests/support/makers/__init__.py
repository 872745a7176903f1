"""Parts of tests/support/source_makers.py, by kind of source. Not tests."""
