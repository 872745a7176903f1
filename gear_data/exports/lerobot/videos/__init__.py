"""The videos of a LeRobot v3.0 dataset: copied or encoded files."""
