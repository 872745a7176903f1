"""Recording into object stores."""
