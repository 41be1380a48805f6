"""Who takes part: seats, names and indices, and who is still there."""
