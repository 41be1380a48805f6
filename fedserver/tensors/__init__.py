"""Which class each tensor of a run has, and where its first value comes from."""
