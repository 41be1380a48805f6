"""What a client measures of its data and of its steps besides training on them."""
