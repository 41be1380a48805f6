"""Makes `python -m fedclient` work."""

from fedclient.cli import main

main()
