"""The run: the open round, deadlines, the fold."""
