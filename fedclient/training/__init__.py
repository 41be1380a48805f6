"""Local training: K steps from x to y_i."""
