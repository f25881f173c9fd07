"""Rows of data files in the layout of envhub: a function, a program or a module, its hidden tests, and how these compare."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from envhub.errors import DataError, UserError
from envhub.sandbox import LANGUAGES, Comparison, same_value
from envhub.tasks import Task

_KNOWN = (
    "prompt",
    "entry",
    "language",
    "tests",
    "examples",
    "comparison",
    "unit_tests",
    "module",
    "solution",
    "task_id",
)


def is_own(row: Mapping[str, Any]) -> bool:
    """Whether a row is of this layout."""
    return "unit_tests" in row or ("tests" in row and ("entry" in row or "language" in row))


def own_task(where: str, row: Mapping[str, Any], name: str) -> Task:
    """The task of a row: `prompt`, `tests`, and `entry` for a function or `language` for a program that reads stdin; or
    `unit_tests`, a file of them that imports the submission as `module` (`solution`).

    A test is a pair: the list of arguments and the value, or the input and the output. `examples` are pairs that the
    prompt shows, `comparison` is what `Comparison.of` takes, `solution` a source that passes. Raises DataError.
    """
    if unknown := sorted(set(row) - set(_KNOWN)):
        raise DataError(f"{where}: unknown key {unknown[0]!r}; there are {', '.join(_KNOWN)}")
    if "entry" in row and "language" in row:
        raise DataError(f"{where}: 'entry' is of a function and 'language' of a program; give one of them")
    if "unit_tests" in row:
        return _module_task(where, row, name)
    prompt, solution = (_text(where, row, key) for key in ("prompt", "solution"))
    entry, language = _text(where, row, "entry"), _text(where, row, "language")
    if not prompt.strip():
        raise DataError(f"{where}: no column 'prompt' with the task")
    if "entry" in row and not entry.isidentifier():
        raise DataError(f"{where}: 'entry' is the name of a function, not {entry!r}")
    if "language" in row and language not in LANGUAGES:
        raise DataError(f"{where}: 'language' is one of {', '.join(LANGUAGES)}, not {language!r}")
    try:
        comparison = Comparison.of(row.get("comparison"))
    except UserError as problem:
        raise DataError(f"{where}: {problem}") from None
    tests, examples = (_pairs(where, row, key, language, comparison) for key in ("tests", "examples"))
    if not tests:
        raise DataError(f"{where}: 'tests' has no test")
    _refuse_disagreement(where, tests, comparison)
    if all(any(same_value(test, example) for example in examples) for test in tests):
        raise DataError(f"{where}: every hidden test is among the examples that the prompt shows; add others")
    info = {
        "entry": entry, "language": language, "solution": solution, "hidden": tests,
        "comparison": comparison.model_dump(exclude_defaults=True),
    }  # fmt: skip
    shown = "".join(_shown(entry, example) for example in examples)
    return Task(f"{prompt.strip()}{shown}", None, info, id=str(row.get("task_id", name)))


def _module_task(where: str, row: Mapping[str, Any], name: str) -> Task:
    if others := sorted(set(row) & {"entry", "language", "tests", "examples", "comparison"}):
        raise DataError(f"{where}: 'unit_tests' say all of a task; leave out {others[0]!r}")
    prompt, solution, tests = (_text(where, row, key) for key in ("prompt", "solution", "unit_tests"))
    module = _text(where, row, "module") or "solution"
    if not prompt.strip():
        raise DataError(f"{where}: no column 'prompt' with the task")
    try:
        ast.parse(tests)
    except (SyntaxError, ValueError) as problem:
        raise DataError(f"{where}: 'unit_tests' are no Python: {problem}") from None
    if not module.isidentifier():
        raise DataError(f"{where}: 'module' is a name that can be imported, not {module!r}")
    info = {"entry": "", "language": "python", "solution": solution, "unit_tests": tests, "module": module}
    return Task(prompt.strip(), None, info, id=str(row.get("task_id", name)))


def _text(where: str, row: Mapping[str, Any], key: str) -> str:
    value = row.get(key, "")
    if not isinstance(value, str):
        raise DataError(f"{where}: {key!r} is a text, not {value!r:.80}")
    return value


def _pairs(
    where: str, row: Mapping[str, Any], key: str, language: str, comparison: Comparison
) -> list[tuple[Any, Any]]:
    found = row.get(key, [])
    if not isinstance(found, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in found):
        raise DataError(f"{where}: {key!r} is a list of pairs: what is given, and what is expected")
    for given, expected in found:
        if not isinstance(given, str if language else list):
            what = "the input, a text" if language else "the list of arguments"
            raise DataError(f"{where}: {key!r}: the first of a pair is {what}, not {given!r:.80}")
        texts = expected if comparison.kind == "any" and isinstance(expected, list) else [expected]
        if language and comparison.kind != "checker" and not all(isinstance(text, str) for text in texts):
            raise DataError(f"{where}: {key!r}: what a program is to print is a text, not {expected!r:.80}")
        if comparison.kind == "any" and (not isinstance(expected, list) or not expected):
            raise DataError(
                f"{where}: {key!r}: the comparison 'any' expects a list of right ones, not {expected!r:.80}"
            )
    return [(given, expected) for given, expected in found]


def _refuse_disagreement(where: str, tests: Sequence[tuple[Any, Any]], comparison: Comparison) -> None:
    if comparison.kind == "checker":  # several may be right
        return
    seen: dict[str, Any] = {}
    for given, expected in tests:
        if not same_value(seen.setdefault(repr(given), expected), expected):
            raise DataError(f"{where}: two tests of {given!r:.80} expect different things, so nobody can pass both")


def _shown(entry: str, example: tuple[Any, Any]) -> str:
    given, expected = example
    if entry:
        return f"\n\nExample: {entry}({', '.join(map(repr, given))}) == {expected!r}"
    return f"\n\nExample input:\n{given.rstrip()}\n\nExample output:\n{str(expected).rstrip()}"
