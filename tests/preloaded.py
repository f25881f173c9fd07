"""A process that has imported what the command line needs and run none of it, which forks a process for each command.

Run as a script with the path of a socket to listen on. A client sends one message, `{"arguments", "folder", "environment"}` with its
standard input, output and error, and is sent the exit code. A fork inherits no thread, because nothing has run.
"""

import json
import os
import socket
import sys
import threading
import traceback
from typing import Any


def _preload() -> None:

    import envhub.agents.engines.transformers_engine
    import envhub.cli.app
    import envhub.cli.commands.eval
    import envhub.cli.commands.sft
    import envhub.cli.commands.train
    import envhub.trainer.run
    import envhub.trainer.sft.run  # noqa: F401


def _serve(place: str) -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(place)
    listening.listen()
    while True:
        client, _ = listening.accept()
        order, standard, _, _ = socket.recv_fds(client, 1 << 20, 3)
        if os.fork() == 0:
            listening.close()
            _answer(client, json.loads(order), standard)
        client.close()
        for fd in standard:
            os.close(fd)


def _answer(client: socket.socket, order: dict[str, Any], standard: list[int]) -> None:
    """Run the command in a process of its own, wait for it, and say how it ended."""
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        client.send(str(code if code >= 0 else 128 - code).encode())
        os._exit(0)
    client.close()
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - they are closed with the process
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    code = 1
    try:
        from envhub.cli.app import run

        code = run(order["arguments"])
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of an interpreter does
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _preload()
    _serve(sys.argv[1])
