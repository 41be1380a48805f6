"""The server's step, done again from what was on the wire."""
