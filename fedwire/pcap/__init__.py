"""Packet captures: packets, TCP streams, HTTP/2, gRPC messages."""
