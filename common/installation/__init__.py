"""What is installed beside this package, and how a shell is told of its commands."""
