"""Documents that are made from the code of several packages; `make docs` writes them."""
