"""What benchmarks share: the form of a result, the machine, processes, and federations without training."""
