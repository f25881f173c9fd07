"""In the box of unit tests: runs a test file, in which the tested module is a stand-in whose calls go to another box.

A script of its own, beside `checker.py` and `wire.py`; no submitted code runs here, so what it reports can be believed. Its
standard input is a socket to the parent: it sends `{"c": call}` and gets a reply, `{"n": count}` when the tests are known, and
`{"t": [test, outcome, message]}` after each of them.
"""

import os
import sys
import types
import unittest

MYPY = False
if MYPY:
    from envhub.sandbox.checker import Submission
    from envhub.sandbox.worker import receive, send
else:  # its neighbours, copied with it
    from checker import Submission
    from worker import receive, send


class _Module(types.ModuleType):
    """Stands for the submitted module: its names are asked for when they are used."""

    def __init__(self, name: str, submission: Submission) -> None:
        super().__init__(name)
        self.__dict__["_submission"] = submission

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["_submission"].attribute(None, name)


class _Results(unittest.TestResult):
    """Tells the parent of each test as it ends."""

    def __init__(self, tell: "_Tell") -> None:
        super().__init__()
        self.tell = tell
        self.failed: dict[str, str] = {}

    def _note(self, test: unittest.TestCase, error: object) -> None:
        self.failed.setdefault(test.id(), _last_line(error))

    def addError(self, test: unittest.TestCase, err: object) -> None:
        self._note(test, err)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        self._note(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: object, err: object) -> None:
        if err is not None:
            self._note(test, err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, None)

    def stopTest(self, test: unittest.TestCase) -> None:
        name = test.id()
        self.tell(name, "failed" if name in self.failed else "passed", self.failed.get(name, ""))


class _Tell:
    """Sends the result of a test."""

    def __init__(self, channel: int) -> None:
        self.channel = channel

    def __call__(self, test: str, outcome: str, message: str) -> None:
        send(self.channel, {"t": [test, outcome, message[:2000].encode("utf-8", "replace").decode()]})


def _last_line(error: object) -> str:
    kind, value = error[:2] if isinstance(error, tuple) else (None, None)
    return "it passed, which it should not" if kind is None else f"{kind.__name__}: {value}"


class _Plugin:
    """Of pytest: tells the parent of each test as it ends, and keeps what could not be collected."""

    def __init__(self, tell: _Tell) -> None:
        self.tell, self.broken = tell, ""
        self.failed: dict[str, str] = {}
        self.skipped: set[str] = set()

    def pytest_collectreport(self, report: object) -> None:
        if report.failed:  # type: ignore[attr-defined]
            self.broken = self.broken or str(report.longrepr).strip().rpartition("\n")[2]  # type: ignore[attr-defined]

    def pytest_collection_finish(self, session: object) -> None:
        send(self.tell.channel, {"n": len(session.items)})  # type: ignore[attr-defined]

    def pytest_runtest_logreport(self, report: object) -> None:
        name = report.nodeid.partition("::")[2]  # type: ignore[attr-defined]
        if report.failed:  # type: ignore[attr-defined]
            crash = getattr(report.longrepr, "reprcrash", None)  # type: ignore[attr-defined]
            self.failed.setdefault(name, getattr(crash, "message", "") or "it failed")
        if report.skipped and not hasattr(report, "wasxfail"):  # type: ignore[attr-defined]
            self.skipped.add(name)
        if report.when == "teardown":  # type: ignore[attr-defined]
            outcome = "failed" if name in self.failed else "skipped" if name in self.skipped else "passed"
            self.tell(name, outcome, self.failed.get(name, ""))


def _with_pytest(tell: _Tell, file: str) -> str:
    import pytest

    plugin = _Plugin(tell)
    flags = ["-q", "--color=no", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--import-mode=importlib"]
    pytest.main([*flags, file], plugins=[plugin])
    return plugin.broken


def _with_unittest(tell: _Tell, name: str) -> str:
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(name)
        module = sys.modules[name]
    except Exception as error:  # whatever the file does when it is imported
        return f"{type(error).__name__}: {error}"
    if not suite.countTestCases() and any(key.startswith("test") for key in vars(module)):
        return "its tests are functions, which pytest runs: install pytest beside envhub"
    send(tell.channel, {"n": suite.countTestCases()})
    suite.run(_Results(tell))
    return ""


def main(module: str, test_file: str, framework: str) -> None:
    channel = os.dup(0)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)

    def ask(request: "dict[str, object]") -> "dict[str, object]":
        send(channel, {"c": request})
        return receive(channel)

    submission = Submission(ask)
    sys.modules[module] = _Module(module, submission)
    sys.path.insert(0, os.getcwd())
    tell = _Tell(channel)
    run = _with_pytest if framework == "pytest" else _with_unittest
    broken = run(tell, test_file if framework == "pytest" else test_file.removesuffix(".py"))
    send(channel, {"d": {"broken": broken, "lacking": submission.lacking}})


if __name__ == "__main__":
    main(*sys.argv[1:])
