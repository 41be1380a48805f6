"""Models by name, and the tensors they exchange. Imports nothing, so that names alone need no torch."""
