"""What server, clients and inspector share: errors, events, tensors, the wire, the algorithms, data."""
