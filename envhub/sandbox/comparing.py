"""What a task declares a right answer to be: comparisons of plain values and of outputs, all made outside of any box."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from envhub.errors import EnvironmentFault, UserError, did_you_mean
from envhub.sandbox.base import RunOutcome, Sandbox, SandboxLimits
from envhub.sandbox.wire import TooLargeError, refuse_collisions

KINDS = ("exact", "close", "unordered", "any", "checker")
_CHECKING = SandboxLimits(wall_seconds=20.0, cpu_seconds=10, result_kb=4, source_kb=1024)


def same_value(expected: Any, actual: Any, tolerance: float | None = None) -> bool:
    """Whether two plain values are the same, types included, at every level: `True` is not 1, and 1 is not 1.0.

    Args:
        expected: The right value.
        actual: The value under test; dict order does not matter.
        tolerance: Largest difference of two floats, absolute or relative to the expected one; exact when None.
            NaN and the infinities equal nothing.
    """
    kind = type(expected)
    if kind is not type(actual):
        return False
    if kind is float:
        if not (math.isfinite(expected) and math.isfinite(actual)):
            return False
        margin = 0.0 if tolerance is None else tolerance * max(1.0, abs(expected))
        return bool(expected == actual) or bool(abs(expected - actual) <= margin)
    if kind in (list, tuple):
        pairs = zip(expected, actual, strict=False)
        return len(expected) == len(actual) and all(same_value(a, b, tolerance) for a, b in pairs)
    if kind is dict:
        typed = {_key(key): value for key, value in actual.items()}
        if len(expected) != len(actual) or len(typed) != len(actual):
            return False
        return all(
            _key(key) in typed and same_value(value, typed[_key(key)], tolerance) for key, value in expected.items()
        )
    if kind in (set, frozenset):
        return {_key(item) for item in expected} == {_key(item) for item in actual}
    if expected is None or kind in (bool, int, str, bytes):
        return bool(expected == actual)
    return False


def _key(value: Any) -> Any:
    """A plain value together with its types, hashable: 1, 1.0 and True differ. NaN equals nothing, not even itself."""
    kind = type(value)
    if kind in (tuple, list):
        return kind, tuple(_key(item) for item in value)
    if kind is dict:
        return kind, frozenset((_key(key), _key(item)) for key, item in value.items())
    if kind in (set, frozenset):
        return kind, frozenset(_key(item) for item in value)
    return kind, object() if kind is float and not math.isfinite(value) else value


def same_output(expected: str, actual: str) -> bool:
    """Whether two outputs have the same lines; line ends, trailing blanks and trailing blank lines do not count."""
    return lines(expected) == lines(actual)


def lines(text: str) -> list[str]:
    """The lines of an output, without trailing blanks and without blank ones at the end."""
    found = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while found and not found[-1]:
        found.pop()
    return found


@dataclass(frozen=True)
class Case:
    """What one test gave, what it expects, and what came: values of a function, or texts of a program."""

    given: Any
    expected: Any
    actual: Any


class Comparison(BaseModel):
    """How what comes is compared with what is expected.

    - `exact`: `same_value` or `same_output`.
    - `close`: the same, but floats within `tolerance`, absolute or relative; in an output, words that are numbers.
    - `unordered`: the same items, or lines, in any order, each as often.
    - `any`: one of several: what is expected is a list of right values, or outputs.
    - `checker`: `checker` is a program that defines `check(given, expected, actual)`, which returns True for a right one.
      It runs in a box of its own, where nothing of the submission is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str = "exact"
    tolerance: float | None = Field(None, ge=0)
    checker: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> "Comparison":
        if self.kind not in KINDS:
            raise ValueError(f"kind is one of {', '.join(KINDS)}, not {self.kind!r}{did_you_mean(self.kind, KINDS)}")
        if (self.tolerance is not None) != (self.kind == "close"):
            raise ValueError("tolerance belongs to the kind close, which needs it")
        if bool(self.checker) != (self.kind == "checker"):
            raise ValueError(
                "checker, a source that defines check(given, expected, actual), belongs to the kind checker"
            )
        return self

    @classmethod
    def of(cls, declared: "str | Mapping[str, Any] | Comparison | None") -> "Comparison":
        """The comparison that a task declares: a kind, or a mapping of the fields. Raises `UserError`."""
        if isinstance(declared, Comparison):
            return declared
        try:
            return cls.model_validate({"kind": declared} if isinstance(declared, str) else dict(declared or {}))
        except (ValidationError, TypeError, ValueError) as problem:
            errors = problem.errors() if isinstance(problem, ValidationError) else []
            said = "; ".join(": ".join([*map(str, error["loc"]), error["msg"]]) for error in errors) or str(problem)
            raise UserError(f"a task declares no comparison: {said}") from None

    async def verdicts(self, sandbox: Sandbox, cases: Sequence[Case], *, texts: bool = False) -> list[bool]:
        """Whether each case is right; `texts` says that they are outputs.

        Raises `EnvironmentFault` for a checker that fails or returns what is no bool, `UserError` for cases of which it is
        not the comparison.
        """
        if self.kind == "checker":
            return await self._checked(sandbox, cases)
        compare = self._same_text if texts else self._same_value
        return [compare(case.expected, case.actual) for case in cases]

    def _same_value(self, expected: Any, actual: Any) -> bool:
        if self.kind == "unordered":
            if not isinstance(expected, list | tuple) or type(expected) is not type(actual):
                return same_value(expected, actual)
            mine, theirs = [_key(item) for item in expected], [_key(item) for item in actual]
            try:
                refuse_collisions(theirs)
            except TooLargeError:
                return False
            return Counter(mine) == Counter(theirs)
        if self.kind == "any":
            return any(same_value(item, actual) for item in _several(expected))
        return same_value(expected, actual, self.tolerance)

    def _same_text(self, expected: Any, actual: str) -> bool:
        if self.kind == "unordered":
            return Counter(lines(expected)) == Counter(lines(actual))
        if self.kind == "any":
            return any(same_output(item, actual) for item in _several(expected))
        if self.tolerance is None:
            return same_output(expected, actual)
        mine, theirs = lines(expected), lines(actual)
        return len(mine) == len(theirs) and all(
            self._same_words(a.split(), b.split()) for a, b in zip(mine, theirs, strict=True)
        )

    def _same_words(self, expected: list[str], actual: list[str]) -> bool:
        if len(expected) != len(actual):
            return False
        for right, word in zip(expected, actual, strict=True):
            numbers = _number(right), _number(word)
            if right != word and (None in numbers or not same_value(*numbers, self.tolerance)):
                return False
        return True

    async def _checked(self, sandbox: Sandbox, cases: Sequence[Case]) -> list[bool]:
        arguments = [[case.given, case.expected, case.actual] for case in cases]
        out: list[bool] = []
        for case, result in zip(cases, await sandbox.calls(self.checker, "check", arguments, _CHECKING), strict=True):
            if result.outcome is not RunOutcome.ok or type(result.value) is not bool:
                said = result.error or f"it returned {result.value!r:.100}, which is neither True nor False"
                raise EnvironmentFault(f"the checker of a task failed for {case.given!r:.100}: {said}")
            out.append(result.value)
        return out


def _several(expected: Any) -> Sequence[Any]:
    if not isinstance(expected, list | tuple) or not expected:
        raise UserError(
            f"a task whose answers are compared by 'any' expects a list of right ones, not {expected!r:.100}"
        )
    return expected


def _number(word: str) -> float | None:
    """The number that a word is in plain decimal notation; None for any other word."""
    if not word.strip("+-0123456789.eE") and "_" not in word:
        try:
            return float(word)
        except ValueError:
            return None
    return None
