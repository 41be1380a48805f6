"""Credentials that peers present to each other: certificates and tokens."""
