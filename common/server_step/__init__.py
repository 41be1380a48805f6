"""The server's step, pure: used by the server and by whoever replays a capture."""
