"""Pages of HTML that need nothing else: one file, one style, one script, light or dark for its reader."""
