"""What happens at a server, as typed events; the text is what people read in the log."""
