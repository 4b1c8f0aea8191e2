"""`python -m wherewhat` runs the command line."""

from .cli import main

main()
