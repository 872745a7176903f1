"""What policies take beside a preset's columns."""
