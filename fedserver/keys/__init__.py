"""Certificates and tokens: issuing, listing, revoking."""
