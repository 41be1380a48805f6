"""Evaluation of x where the data are: what is held out, and the counts that are reported."""
