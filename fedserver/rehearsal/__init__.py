"""What comes before round 1: a rehearsal of which nothing counts, and the first variates of all clients."""
