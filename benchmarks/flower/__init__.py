"""`make bench-flower`: Flower and ours with the same shapes and clients, on one machine in one go."""
