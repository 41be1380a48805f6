"""Runs as tables, pictures and pages."""
