"""Experiment trackers: what a run records of each round, told to TensorBoard or MLflow once."""
