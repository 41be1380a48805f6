"""A researcher's own grid of runs, from a file: methods, settings to search, seeds, tables and a page."""
