"""A rehearsal before round 1 (`--canary`): the way of a round with a few steps, of which nothing counts."""
