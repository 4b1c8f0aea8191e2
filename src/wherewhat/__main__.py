"""`python -m wherewhat` is the command line."""

from .cli import main

main()
