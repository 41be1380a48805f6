"""The items of the catalogue: which runs each needs, and what it makes of them."""
