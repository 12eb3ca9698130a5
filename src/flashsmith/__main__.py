"""`python -m flashsmith`: the `flashsmith` command."""

from flashsmith.cli import main

main()
