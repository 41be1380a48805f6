"""Models: what they cost to train in a federation, and their first weights."""
