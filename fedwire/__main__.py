"""Makes `python -m fedwire` work."""

from fedwire.cli import main

main()
