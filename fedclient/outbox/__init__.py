"""The log of everything that has left a site: written before it leaves, chained, signed, listed, verified."""
