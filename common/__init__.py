"""What server and clients must agree on: errors, settings, tensors, the wire, models and data."""
