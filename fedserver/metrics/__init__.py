"""A run for Prometheus: the numbers of its directory as text, and a process that serves it."""
