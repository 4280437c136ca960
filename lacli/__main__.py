"""`python -m lacli`."""

from lacli.cli.main import main

main()
