"""The videos of a LeRobot v3.0 dataset: files that are copied, and files that are encoded."""
