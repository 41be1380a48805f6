"""Federations of real processes on this machine."""
