"""`python -m envhub.cli` is `envhub`."""

from envhub.cli.app import main

main()
