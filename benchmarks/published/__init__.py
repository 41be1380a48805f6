"""What documents say of results."""
