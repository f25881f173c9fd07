"""A console that outlives its reader."""

import os
import sys

from rich.console import Console


class SturdyConsole(Console):
    """Prints into nothing once nobody reads any more (`| head`): what a command does goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
