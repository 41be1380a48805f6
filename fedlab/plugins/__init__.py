"""What installed packages add, as a list."""
