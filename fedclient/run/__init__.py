"""The client's life in a run."""
