"""Keys of the site, which never leave it."""
