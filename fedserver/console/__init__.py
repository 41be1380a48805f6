"""What people see of a running server."""
