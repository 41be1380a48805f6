"""What a run writes down, as typed records."""
