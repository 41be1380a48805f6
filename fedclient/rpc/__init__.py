"""The client's side of the calls."""
