"""The run on disk."""
