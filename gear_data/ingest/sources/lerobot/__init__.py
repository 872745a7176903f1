"""LeRobot v2 and v3."""
