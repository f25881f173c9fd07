"""The command line, run in a folder of the test's own."""

from pathlib import Path

import pytest

from envhub.cli.app import run


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command in a folder of its own; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return call
