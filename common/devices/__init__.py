"""Where a process computes: which device, and all that is done otherwise than on the processor."""
