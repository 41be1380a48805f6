"""Processes that are forked or started by another of ours."""
