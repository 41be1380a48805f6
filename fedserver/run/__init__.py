"""The run: members, the open round, deadlines, the fold."""
