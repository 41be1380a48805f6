"""The process beside the server that has torch."""
