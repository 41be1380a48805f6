"""What Python programs and notebooks use of the lab: simulations, and what runs have left behind."""
