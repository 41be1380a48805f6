"""What Python programs use of the server: one in a process beside theirs."""
