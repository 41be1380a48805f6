"""The server process of one training run."""
