"""Every command block of README and docs is run, in order, in a folder of its own; generated pages are up to date.

`envhub` and `make` are wrapped: training and models shrink to test sizes, and make only prints what it would do. The
commands of `PRELOADED` pages are forks of a process that has imported torch and transformers, which takes seconds otherwise.
Blocks of Python are run too.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envhub import plugins

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "environments").glob("*/README.md")),
    ROOT / "examples" / "README.md",
]
PRELOADED = (
    "howto/sft.md",
    "howto/train.md",
    "howto/lora.md",
    "howto/evaluate.md",
    "tutorial.md",
    "docs/algorithms.md",
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)\)")

ENVHUB = """#!{python}
import json, os, re, socket, sys
def main(arguments):
    if "PRELOADED" not in os.environ:
        from envhub.cli.app import main
        main(arguments)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(os.environ["PRELOADED"])
    order = dict(arguments=arguments, folder=os.getcwd(), environment=dict(os.environ))
    socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
    sys.exit(int(server.recv(100)))
arguments = sys.argv[1:]
if arguments[:1] == ["train"]:
    if "--resume" not in arguments:
        arguments += ["--preset", "test", "--engine", "transformers", "--no-tensorboard"]
        arguments += ["--steps", "2", "--tasks-per-step", "2", "--group-size", "4", "--max-turn-tokens", "16"]
        if not any(pair[0] == "--model" and pair[1].startswith("runs/") for pair in zip(arguments, arguments[1:])):
            arguments += ["--model", "tiny"]
elif arguments[:1] == ["sft"]:
    arguments += [] if "--resume" in arguments else ["--model", "tiny", "--no-tensorboard"]
elif arguments[:1] == ["eval"] and not any(item.startswith("scripted:") for item in arguments):
    if any(item.startswith("openai:") for item in arguments):  # no endpoint is there to be asked
        arguments = ["scripted:random" if item.startswith("openai:") else item for item in arguments]
        main([*arguments, "--tasks", "2"])
    arguments = ["tiny" if item == "smollm2" else item for item in arguments]
    arguments += ["--engine", "transformers", "--tasks", "2", "--max-turn-tokens", "16"]
main(arguments)
"""
MAKE = """#!/bin/sh
exec {make} -n -C {root} "$@"
"""


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def environment(folder: Path) -> dict[str, str]:
    tools = folder / "tools"
    tools.mkdir()
    make = subprocess.run(["which", "make"], capture_output=True, text=True, check=True).stdout.strip()
    for name, text in (("envhub", ENVHUB), ("make", MAKE)):
        (tools / name).write_text(text.format(python=sys.executable, make=make, root=ROOT))
        (tools / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def preloaded() -> Iterator[str]:
    """The socket of a process that has imported what the command line needs."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "socket"
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "preloaded.py"), str(place)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            while not place.exists():
                assert process.poll() is None
                time.sleep(0.05)
            yield str(place)
        finally:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "bash")], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_command_block_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest):
    setting = environment(tmp_path)
    if str(page).endswith(PRELOADED):
        setting["PRELOADED"] = request.getfixturevalue("preloaded")
    work = tmp_path / "work"
    work.mkdir()
    (work / "examples").symlink_to(ROOT / "examples")
    for block in blocks(page, "bash"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=work,
            env=setting,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run_and_links_lead_somewhere(page: Path):
    text = page.read_text(encoding="utf-8")
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")
        if "import" in block:
            exec(compile(block, str(page), "exec"), {"__name__": "documented"})
    broken = [link for link in LINK.findall(text) if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("name", ["cli.md", "configuration.md"])
def test_the_reference_is_what_the_code_says(name: str):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.insert(0, 'scripts'); import write_reference as w; "
         f"print(w.pages()[w.ROOT / 'docs/reference/{name}'], end='')"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8"), (
        "run scripts/write_reference.py"
    )


def test_every_algorithm_is_explained():
    page = (ROOT / "docs" / "concepts" / "algorithm.md").read_text(encoding="utf-8")
    assert [name for name in plugins.names(plugins.ALGORITHMS) if f"| `{name}` |" not in page] == []
