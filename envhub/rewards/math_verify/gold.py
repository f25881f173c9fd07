"""Gold answers, typed when a task set is built."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from envhub.errors import DataError
from envhub.rewards.math_verify.compare import is_choice, is_double, is_expression, places_of
from envhub.rewards.math_verify.exact import TooCostlyError, UndefinedError, check_cost, exact
from envhub.rewards.math_verify.extract import extract
from envhub.rewards.math_verify.lexer import UnreadableError
from envhub.rewards.math_verify.nodes import (
    Call,
    Group,
    Listing,
    Matrix,
    Node,
    PlusMinus,
    Quantity,
    Relation,
    Union,
    Words,
    all_of,
)
from envhub.rewards.math_verify.parser import parse

_SHOWN = 8
_PARTED = ("tuple", "list", "set", "interval", "equation", "matrix")


@dataclass(frozen=True, slots=True)
class Gold:
    """A right answer: its text, its tree, its type, and its exact value where it is a rational number.

    `kind` is integer, rational, decimal, expression, tuple, list, set, interval, equation, matrix, ratio, quantity,
    choice or text.
    """

    text: str
    node: Node
    kind: str
    value: Fraction | None = None

    @property
    def is_parted(self) -> bool:
        """Whether it has parts, so that a comma in an answer may part them."""
        return self.kind in _PARTED

    @property
    def takes_several(self) -> bool:
        """Whether an answer may name several values."""
        return self.kind in ("list", "set")


def typed(text: object) -> Gold:
    r"""A gold answer, typed. Numbers and what a `\boxed{…}` holds are taken too. Raises DataError where it cannot be read."""
    if isinstance(text, bool) or not isinstance(text, str | int | float) or text != text:
        shown = "nan" if isinstance(text, float) else type(text).__name__
        raise DataError(f"a gold answer is text or a number, not {shown}")
    written = str(text).strip()
    if "\\boxed" in written or "####" in written:
        found = extract(written)
        if found.problem or found.several:
            raise DataError(
                f"the gold answer {_short(written)} holds no single answer: {found.problem or 'several boxes'}"
            )
        written = found.text
    try:
        node = parse(written, thousands=False)
        check_cost(node)
        for part in all_of(node):
            value = part.value if isinstance(part, Quantity) else part
            if isinstance(part, Call | Quantity) and not (is_expression(value) or is_double(value)):
                raise UnreadableError("it computes with what is no number")
        number = exact(node)
    except (UnreadableError, TooCostlyError, UndefinedError) as problem:
        raise DataError(f"the gold answer {_short(written)} cannot be read: {problem}") from None
    return Gold(written, node, _kind(node, number), number)


def typed_rows(answers: Iterable[object], first: int = 1) -> list[Gold]:
    """The gold answers of a table. Raises DataError that lists every row that cannot be typed, by its number from `first`."""
    out, problems = [], []
    for number, answer in enumerate(answers, start=first):
        try:
            out.append(typed(answer))
        except DataError as problem:
            problems.append(f"row {number}: {problem}")
    if problems:
        more = f"\n… and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise DataError(f"{len(problems)} gold answers cannot be typed:\n" + "\n".join(problems[:_SHOWN]) + more)
    return out


def _kind(node: Node, value: Fraction | None) -> str:
    match node:
        case Words():
            return "text"
        case _ if is_choice(node):
            return "choice"
        case Matrix():
            return "matrix"
        case Listing():
            return "list"
        case Group("{", _, _) | PlusMinus():
            return "set"
        case Group("(", _, ")"):
            return "tuple"
        case Relation(signs, _) if signs[0] == ":":
            return "ratio"
        case Relation(signs, _) if set(signs) == {"="}:
            return "equation"
        case Group() | Union() | Relation():
            return "interval"
        case Quantity():
            return "quantity"
    if not is_expression(node):
        return "set"
    if value is None:
        return "expression"
    if places_of(node) is not None:
        return "decimal"
    return "integer" if value.denominator == 1 else "rational"


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
