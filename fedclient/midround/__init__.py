"""Where a client is inside a round, on disk: a long round that is killed goes on from there."""
