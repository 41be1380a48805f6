"""The lab bench around a federation: demo, partitions, model cards."""
