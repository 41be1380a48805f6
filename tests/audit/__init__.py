"""What `make audit` looks for: secrets in the tree, and dependencies with known vulnerabilities."""
