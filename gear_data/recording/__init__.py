"""Recording: steps of environments become episodes, a journal, and a dataset."""
