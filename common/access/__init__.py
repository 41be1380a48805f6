"""How a peer is reached and known: channels, the bytes on their connections, certificates and tokens."""
