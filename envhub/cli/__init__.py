"""The command line `envhub`."""

from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    from envhub.cli.app import main as run

    run()
