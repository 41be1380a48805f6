"""The calls of federation.proto: from gRPC to the run and back."""
