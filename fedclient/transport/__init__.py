"""How encoded messages reach the server: over gRPC, paced, captured."""
