"""Writing a dataset: staging folder, shard writer, progress files and the file store behind them."""
