"""A Flower app that does no training: what is left is what Flower itself takes."""
