"""The client daemon: owns a shard, trains locally, pushes updates."""
