"""Clients that pull and push on command, ours and raw ones, for bench_transfer."""
