"""Whether two answers are equal, by math-verify. Runs in a process that can be killed: see `verify.py`."""

import logging
import re
from typing import Any

logging.getLogger("math_verify").setLevel(logging.ERROR)

_PRECISION = 1e-15
_KIND = {
    "set": re.compile(r"^\\?\{.*\\?\}$|^\\emptyset$|^\\varnothing$"),
    "tuple": re.compile(r"^\(.*,.*\)$"),
    "interval": re.compile(r"^[\[(].*,.*[\])]$"),
}


def equivalent(answer: str, gold: str) -> bool:
    """Whether math-verify finds the answer equal to the gold answer. Both are the contents of a box."""
    from math_verify import LatexExtractionConfig, parse, verify

    config = (LatexExtractionConfig(boxed_match_priority=0),)
    parsed_gold = parse(f"\\boxed{{{gold}}}", extraction_config=config, parsing_timeout=None)
    parsed = parse(f"\\boxed{{{answer}}}", extraction_config=config, parsing_timeout=None)
    if not parsed_gold:
        raise ValueError(f"the gold answer {gold!r} cannot be read")
    if not parsed:
        return False
    numbers = _number(parsed_gold[0]), _number(parsed[0])
    if numbers[0] is not None and numbers[1] is not None:
        # math-verify rounds to an absolute precision, by which all tiny numbers are equal.
        return bool(abs(numbers[0] - numbers[1]) <= _PRECISION * max(abs(numbers[0]), abs(numbers[1])))
    return bool(verify(parsed_gold, parsed, float_rounding=12, timeout_seconds=None))


def _number(value: Any) -> Any:
    """A finite constant to 30 digits; None for anything else."""
    if getattr(value, "free_symbols", True) or not getattr(value, "is_number", False):
        return None
    number = value.evalf(30)
    return number if number.is_finite and number.is_number else None


def kind(text: str) -> str:
    """What an answer looks like: `set`, `tuple`, `interval` or `value`."""
    text = text.strip()
    for name, pattern in _KIND.items():
        if pattern.match(text):
            return name
    return "value"
