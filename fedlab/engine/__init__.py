"""Runs the cells of experiments, on this machine or on others, and tells what came of each."""
