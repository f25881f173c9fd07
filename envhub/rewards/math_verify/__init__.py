r"""Is a mathematical answer right? Decided without running anything of it.

    judgement = await verify("… so it is \boxed{\frac{2}{4}}", typed("1/2"))
    judgement.verdict  # Verdict.right

The final answer is taken from its box, read by a parser of its own, and compared with the gold answer within that one's
type. What rational arithmetic decides is decided here; the rest, equality at random points, in a process that is killed
after `SECONDS`. There are three outcomes: an answer that cannot be decided is neither right nor wrong.
"""

import asyncio
import enum
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from weakref import WeakKeyDictionary

from envhub.errors import DeadlineError, EnvironmentFault, Fault
from envhub.rewards.math_verify.compare import Comparison, ExactArithmetic, Undecided
from envhub.rewards.math_verify.exact import TooCostlyError, UndefinedError, check_cost
from envhub.rewards.math_verify.extract import Answer, extract
from envhub.rewards.math_verify.gold import Gold, typed, typed_rows
from envhub.rewards.math_verify.lexer import UnreadableError
from envhub.rewards.math_verify.parser import readings
from envhub.rewards.math_verify.policy import Policy

__all__ = [
    "SECONDS", "Answer", "Gold", "Judgement", "Policy", "Verdict", "extract", "judge", "typed", "typed_rows", "verify",
    "verify_blocking",
]  # fmt: skip

SECONDS = 3.0
_TARGET = "envhub.rewards.math_verify.numeric:decide"
_STRICT = Policy()
_SHORT = 10_000  # characters that are looked through at once
_NUMBERS = ("integer", "rational", "decimal")
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_PLAIN = re.compile(r"([+-]?)(?:(\d{1,40})(?:/(\d{1,40})|\.(\d{1,40}))?|\\[dt]?frac\{(\d{1,40})\}\{(\d{1,40})\})")


class Verdict(str, enum.Enum):
    """What an answer is; `unverifiable` ones are neither, and training leaves them out."""

    right = "right"
    wrong = "wrong"
    unverifiable = "unverifiable"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, the answer it is about (empty where none was found), and the reason where it is not `right`."""

    verdict: Verdict
    answer: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return self.verdict is Verdict.right


async def verify(text: str, gold: Gold | str, policy: Policy = _STRICT) -> Judgement:
    """Whether the final answer of a model's text is right. Raises DataError for a gold answer that cannot be read."""
    if len(text) <= _SHORT:
        found = extract(text, policy)
    else:
        async with _turn():
            found = extract(text, policy)
    if found.problem:
        return Judgement(Verdict.wrong, reason=found.problem)
    return await judge(found, gold, policy)


async def judge(answer: Answer | str, gold: Gold | str, policy: Policy = _STRICT) -> Judgement:
    """Whether an answer, what a box holds, is right; see `verify`."""
    gold = gold if isinstance(gold, Gold) else typed(gold)
    answer = answer if isinstance(answer, Answer) else Answer(answer)
    decided = _of_plain(answer, gold, policy)
    if decided is None:
        async with _turn():
            decided = _decided(answer, gold, policy)
    if decided is not None:
        return decided
    from envhub.rewards import process_pool

    try:
        same = await process_pool().call(
            _TARGET, answer.text, gold.text, policy.model_dump(), gold.is_parted,
            deadline=SECONDS, what="the verifier",
        )  # fmt: skip
    except (DeadlineError, EnvironmentFault) as problem:
        return Judgement(Verdict.unverifiable, answer.text, str(problem))
    except Fault as problem:  # of the arithmetic, in the process
        return Judgement(Verdict.unverifiable, answer.text, f"it cannot be computed: {problem}")
    return Judgement(Verdict.right, answer.text) if same else _unequal(answer)


def verify_blocking(text: str, gold: Gold | str, policy: Policy = _STRICT) -> Judgement:
    """`verify` for callers without an event loop, from any thread. It starts a process for each answer that needs one."""

    async def run() -> Judgement:
        from envhub.rewards import process_pool

        try:
            return await verify(text, gold, policy)
        finally:
            await process_pool().close()

    return asyncio.run(run())


@asynccontextmanager
async def _turn() -> AsyncIterator[None]:
    """One at a time for each event loop, which runs everything else in between: what is decided here waits for nothing."""
    lock = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock:
        await asyncio.sleep(0)
        yield


def _of_plain(answer: Answer, gold: Gold, policy: Policy) -> Judgement | None:
    """The verdict on a plain number where the gold answer is one; None where there is more to it."""
    if gold.value is None or answer.several or (number := _plain(answer.text)) is None:
        return None
    value, places = number
    if value == gold.value:
        return Judgement(Verdict.right, answer.text)
    may_stand = places >= policy.long_decimal or (gold.kind == "decimal" and policy.decimals != "exact")  # for another
    return _unequal(answer) if gold.kind in _NUMBERS and not may_stand else None


def _decided(answer: Answer, gold: Gold, policy: Policy) -> Judgement | None:
    """The verdict, where it takes no more than rational arithmetic; None where it does."""
    if answer.several and not gold.takes_several:
        return Judgement(Verdict.wrong, answer.text, "several boxes with different answers")
    compare, undecided = Comparison(ExactArithmetic(), policy), False
    try:
        for node in readings(answer.text, parted=gold.is_parted):
            check_cost(node)
            try:
                if compare(node, gold.node):
                    return Judgement(Verdict.right, answer.text)
            except Undecided:
                undecided = True
    except (UnreadableError, TooCostlyError, UndefinedError) as problem:
        return Judgement(Verdict.wrong, answer.text, str(problem))
    return None if undecided else _unequal(answer)


def _unequal(answer: Answer) -> Judgement:
    return Judgement(Verdict.wrong, answer.text, "it is not equal to the gold answer")


def _plain(text: str) -> tuple[Fraction, int] | None:
    """The value of a plain integer, fraction or decimal and its digits after the point; None for anything else."""
    found = _PLAIN.fullmatch(text.strip())
    if found is None or not found[0].isascii():
        return None
    sign, whole, below, places, top, bottom = found.groups()
    if top is not None:
        whole, below = top, bottom
    if below is not None and not int(below):
        return None
    if places is not None:
        value = Fraction(int(whole + places), 10 ** len(places))
    else:
        value = Fraction(int(whole), int(below or 1))
    return -value if sign == "-" else value, len(places or "")
