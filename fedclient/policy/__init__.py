"""What may leave a site: the rules of its site.toml, approvals, and the log of everything that has left."""
