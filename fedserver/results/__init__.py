"""What comes of a run: its rounds evaluated and recorded, and what is told at the end."""
