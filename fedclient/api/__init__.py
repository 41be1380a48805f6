"""What Python programs use of the client: one that takes part with their own objects."""
