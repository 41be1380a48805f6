"""What `make same-bits` does: the same federations in two revisions, to see whether results are the same."""
