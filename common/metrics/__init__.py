"""How good a model is, from counts: pure functions, without torch."""
