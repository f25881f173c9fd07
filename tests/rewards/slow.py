"""What a verifier's process is given to hang on."""

import time


def forever(*_: object) -> bool:
    """Does not return."""
    while True:
        time.sleep(1)
