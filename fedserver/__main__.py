"""Makes `python -m fedserver` work."""

from fedserver.cli import main

main()
