"""Which steps windows may use: the rules of steps, and the masks that they make."""
