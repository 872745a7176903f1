"""Export to LeRobot v3.0: data files, features, and the files under `meta/`."""
