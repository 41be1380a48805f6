"""The lab bench around a federation: demo, simulations, experiments, reports, partitions, model cards."""
