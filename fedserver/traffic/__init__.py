"""The byte ledger: every message by purpose, and what the kernel counted."""
