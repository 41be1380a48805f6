"""Data sets as plain arrays, and batches of them."""
