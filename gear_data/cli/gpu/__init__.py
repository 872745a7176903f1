"""What `gear-data doctor` says about GPUs: probes, and how processes share them."""
