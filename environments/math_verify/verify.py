"""Is an answer right? Exact numbers and equal texts at once; everything else in a process that can be killed."""

import re
from fractions import Fraction

from envhub.environments.math_verify.equivalence import kind
from envhub.environments.math_verify.extract import extract
from envhub.environments.math_verify.normal import (
    MOST_CHARACTERS,
    are_words,
    exact_number,
    is_decimal,
    normalise,
    plain_text,
    refusal,
)
from envhub.rewards import process_pool

SECONDS = 3.0
_TARGET = "envhub.environments.math_verify.equivalence:equivalent"
_ASSIGNMENT = re.compile(r"^\s*[a-zA-Z]\w?(?:\([a-z]\))?\s*=(?!=)\s*([^=<>]+)$")
_LONG_DECIMAL = 12  # digits after the point from which a decimal stands for the exact value it rounds


async def is_right(text: str, gold: str) -> bool:
    """Whether the final answer of a text equals the gold answer (its box's contents).

    Raises DeadlineError when that cannot be decided within 3 s, EnvironmentFault or ValueError when the verifier fails.
    """
    found = extract(text)
    return False if found.problem else await same_answer(found.text, gold)


async def same_answer(answer: str, gold: str) -> bool:
    """Whether two answers are equal; see `is_right`."""
    if len(answer) > 4 * MOST_CHARACTERS:
        return False
    answer, gold = normalise(answer), normalise(gold)
    if refusal(answer, gold):
        return False
    if answer == gold:
        return True
    if are_words(plain_text(gold)) and plain_text(answer) == plain_text(gold):
        return True
    assigned = _ASSIGNMENT.match(answer)
    if assigned and "=" not in gold and "," not in assigned[1]:
        answer = assigned[1].strip()
    numbers = exact_number(_unwrapped(answer)), exact_number(_unwrapped(gold))
    if numbers[0] is not None and numbers[1] is not None:
        return _same_number(numbers[0], numbers[1], answer)
    if numbers[1] is not None and kind(answer) != "value":
        return False
    if are_words(plain_text(gold)) and len(plain_text(gold)) > 1:
        return False
    if (bool(re.search(r"[<>]|\\[lg]e", answer)) or "," in answer) and numbers[1] is not None:
        return False
    if "=" in answer and numbers[1] is not None:
        left, _, right = answer.rpartition("=")
        same = await same_answer(right, gold)
        return same and (await same_answer(left, gold) or _ASSIGNMENT.match(answer) is not None)
    return bool(await process_pool().call(_TARGET, answer, gold, deadline=SECONDS, what="math-verify"))


def _same_number(answer: Fraction, gold: Fraction, written: str) -> bool:
    if answer == gold:
        return True
    digits = len(written.rpartition(".")[2]) if is_decimal(written) else 0
    if digits < _LONG_DECIMAL:
        return False
    return bool(abs(answer - gold) * 10**digits <= 1)


def _unwrapped(text: str) -> str:
    return re.sub(r"^\\text\s*\{(.*)\}$", r"\1", text).strip()
