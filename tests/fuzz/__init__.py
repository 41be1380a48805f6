"""Every decoder of bytes that come from a peer or from disk, and inputs worth keeping."""
