"""Makes `python -m fedlab` work."""

from fedlab.cli import main

main()
