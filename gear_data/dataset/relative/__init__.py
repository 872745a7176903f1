"""Statistics of relative columns, over all chunks of datasets."""
