"""Whether an answer's tree means the same as the gold answer's; each type of gold answer takes answers of its own type only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from envhub.rewards.math_verify.exact import UndefinedError, exact
from envhub.rewards.math_verify.nodes import (
    Call,
    Group,
    Listing,
    Matrix,
    Node,
    Number,
    PlusMinus,
    Quantity,
    Relation,
    Symbol,
    Union,
    Words,
    children,
    in_radians,
    symbols,
)
from envhub.rewards.math_verify.policy import Policy
from envhub.rewards.math_verify.units import in_common

_ZERO = Number(Fraction(0))
_INFINITE = {Symbol("oo"): 1, Call("neg", (Symbol("oo"),)): -1}
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
_ORDERS = ("<", ">", "<=", ">=", "!=")


class Undecided(Exception):
    """Exact arithmetic does not decide it."""


class Arithmetic(Protocol):
    """Decides about expressions. Each method may raise Undecided, and UndefinedError for what has no value."""

    def same(self, answer: Node, gold: Node, policy: Policy) -> bool:
        """Whether two expressions are equal wherever they have a value."""

    def proportional(self, answer: Node, gold: Node, *, positive: bool) -> bool:
        """Whether one is the other times a constant that is not 0 (with `positive`: above 0)."""

    def differ_by_constant(self, answer: Node, gold: Node) -> bool:
        """Whether their difference does not depend on the variables."""


class ExactArithmetic:
    """Decides what rational arithmetic decides."""

    def same(self, answer: Node, gold: Node, policy: Policy) -> bool:
        """See Arithmetic."""
        if answer == gold:
            return not _is_undefined(answer)
        values = exact(answer), exact(gold)
        if values[0] is None or values[1] is None:
            raise Undecided
        return same_number(values[0], values[1], answer, gold, policy)

    def proportional(self, answer: Node, gold: Node, *, positive: bool) -> bool:
        """See Arithmetic."""
        raise Undecided

    def differ_by_constant(self, answer: Node, gold: Node) -> bool:
        """See Arithmetic."""
        raise Undecided


def _is_undefined(node: Node) -> bool:
    return any(_is_undefined(child) for child in children(node)) or (isinstance(node, Call) and _fails(node))


def _fails(node: Node) -> bool:
    try:
        exact(node)
    except UndefinedError:
        return True
    return False


def same_number(answer: Fraction, gold: Fraction, written: Node, gold_written: Node, policy: Policy) -> bool:
    """Whether two numbers are the same, or one a decimal that stands for the other."""
    if answer == gold:
        return True
    places = places_of(written)
    if places is not None and places >= policy.long_decimal and places_of(gold_written) is None:
        return stands_for(answer, gold, places)
    gold_places = places_of(gold_written)
    if policy.decimals == "half_unit" and gold_places is not None:
        return bool(abs(answer - gold) * 10**gold_places <= Fraction(1, 2))
    return False


def stands_for(decimal: Any, value: Any, places: int) -> bool:
    """Whether a decimal of so many places is what a value becomes when it is rounded or cut off there; 0 is 0 only."""
    above = (abs(decimal) - abs(value)) * 10**places
    return bool(decimal and (decimal < 0) == (value < 0) and -1 < above <= 0.5)


def places_of(node: Node) -> int | None:
    """The digits after the point of a literal, also a negative one; None for anything else."""
    while isinstance(node, Call) and node.name == "neg":
        (node,) = node.arguments
    return node.places if isinstance(node, Number) else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares by an arithmetic and a policy."""

    arithmetic: Arithmetic
    policy: Policy

    def __call__(self, answer: Node, gold: Node) -> bool:
        """Whether the answer is right. Raises Undecided."""
        try:
            return self.matches(answer, gold)
        except UndefinedError:
            return False

    def matches(self, answer: Node, gold: Node) -> bool:
        match gold:
            case Words(text):
                return _words(answer) == _plain(text)
            case Symbol(name) if is_choice(gold):
                return _words(answer) == name.casefold()
            case Matrix():
                return self._matrix(answer, gold)
            case Relation(signs, parts) if signs[0] == ":":
                return self._ratio(answer, parts)
            case Relation(("=",), (name, right)) if _is_name(name):
                return self._assigned(answer, gold, right)
            case Group("(" | "[", items, _) if len(items) != 2:
                return self._tuple(answer, gold, items)
            case Relation(("=",), _):
                return self._equation(answer, gold)
            case Relation() | Union() | Group("[", _, _) | Group(_, _, "]"):
                return self._region(answer, gold)
            case Group("{", items, _):
                return self._set(answer, items)
            case Group(_, items, _):
                return self._tuple(answer, gold, items)
            case Listing(items):
                return self._list(answer, items)
            case Quantity(value, unit):
                return self._quantity(answer, value, unit)
        if is_double(gold):
            return self._set(answer, tuple(both_signs(gold)), bare=True)
        return self._value(answer, gold)

    def _same(self, answer: Node, gold: Node) -> bool:
        infinite = _INFINITE.get(gold), _INFINITE.get(answer)
        if infinite != (None, None):
            return infinite[0] == infinite[1]
        if "oo" in symbols(answer):
            return False
        if not (is_expression(answer) and is_expression(gold)):
            return False
        if answer == gold and not _is_undefined(answer):
            return True
        if self.policy.absorb_constant and _constant_of_integration(gold):
            return _constant_of_integration(answer) and self.arithmetic.differ_by_constant(answer, gold)
        return self.arithmetic.same(answer, gold, self.policy)

    def _value(self, answer: Node, gold: Node) -> bool:
        """A gold answer that is one expression."""
        if isinstance(answer, Relation) and set(answer.signs) == {"="}:
            return all(self._value(part, gold) for part in _stated(answer))
        if isinstance(answer, Quantity):
            if answer.unit == "%":
                return self._same(Call("/", (answer.value, Number(Fraction(100)))), gold)
            known = in_common(answer.unit)
            return self.policy.extra_unit and _is_known(answer.unit, known) and self._value(answer.value, gold)
        return self._same(answer, gold)

    def _quantity(self, answer: Node, value: Node, unit: str) -> bool:
        if isinstance(answer, Relation) and set(answer.signs) == {"="}:
            return all(self._quantity(part, value, unit) for part in _stated(answer))
        if unit == "%":
            fraction = Call("/", (value, Number(Fraction(100))))
            if isinstance(answer, Quantity):
                return answer.unit == "%" and self._same(answer.value, value)
            return self._same(answer, fraction)
        if not isinstance(answer, Quantity):
            if not self.policy.missing_unit:
                return False
            if self._same(answer, value):
                return True
            return "pi" in symbols(answer) and self._in_radians(answer, value, unit)
        mine, theirs = in_common(unit), in_common(answer.unit)
        if theirs[0] == "radian" and mine[0] == "angle":
            return self._in_radians(answer.value, value, unit)
        if mine[0] != theirs[0] or (mine[1] != theirs[1] and not self.policy.convert_units):
            return False
        if mine[1] == theirs[1]:
            return self._same(answer.value, value)
        return self._same(
            *(Call("*", (node, Number(each[1]))) for node, each in ((answer.value, theirs), (value, mine)))
        )

    def _in_radians(self, answer: Node, value: Node, unit: str) -> bool:
        return unit == "deg" and self.policy.radians and self._same(answer, in_radians(value))

    def _assigned(self, answer: Node, gold: Relation, right: Node) -> bool:
        """A gold answer `y = …`: the same, the right side alone, or an equation that says the same."""
        if isinstance(answer, Relation) and set(answer.signs) == {"="}:
            if answer.parts[0] == gold.parts[0]:
                return all(self.matches(part, right) for part in answer.parts[1:])
            return is_expression(right) and self._equation(answer, gold)
        return not isinstance(answer, Relation) and self.matches(answer, right)

    def _equation(self, answer: Node, gold: Relation) -> bool:
        if len(gold.signs) > 1:
            return self._same_chain(answer, gold)
        if not isinstance(answer, Relation) or answer.signs != ("=",):
            return False
        sides = [*answer.parts, *gold.parts]
        if not all(map(is_expression, sides)) or any("oo" in symbols(side) for side in sides):
            return False
        return self.arithmetic.proportional(_difference(answer), _difference(gold), positive=False)

    def _ratio(self, answer: Node, gold: Sequence[Node]) -> bool:
        if not isinstance(answer, Relation) or set(answer.signs) != {":"} or len(answer.parts) != len(gold):
            return False
        if not self.policy.scaled_ratio:
            return self._pairwise(answer.parts, gold)
        first, *rest = zip(answer.parts, gold, strict=True)
        if any(self._same(part, _ZERO) for part in (*answer.parts, *gold)):
            return self._pairwise(answer.parts, gold)
        return all(self._same(Call("*", (one, first[1])), Call("*", (other, first[0]))) for one, other in rest)

    def _pairwise(self, answers: Sequence[Node], golds: Sequence[Node]) -> bool:
        return len(answers) == len(golds) and all(map(self.matches, answers, golds))

    def _tuple(self, answer: Node, gold: Group, items: Sequence[Node]) -> bool:
        answer = _unnamed(answer)
        if self.policy.vector_as_tuple and isinstance(answer, Matrix) and all(len(row) == 1 for row in answer.rows):
            return self._pairwise([row[0] for row in answer.rows], items)
        if isinstance(answer, Group) and (answer.opening, answer.closing) == (gold.opening, gold.closing):
            return self._pairwise(answer.items, items)
        is_region = isinstance(answer, Relation) and set(answer.signs) <= {*_ORDERS, "in"}
        return is_region and len(items) == 2 and self._region(answer, gold)

    def _matrix(self, answer: Node, gold: Matrix) -> bool:
        answer = _unnamed(answer)
        if self.policy.vector_as_tuple and isinstance(answer, Group) and (answer.opening, answer.closing) == ("(", ")"):
            return all(len(row) == 1 for row in gold.rows) and self._pairwise(
                answer.items, [row[0] for row in gold.rows]
            )
        return (
            isinstance(answer, Matrix)
            and len(answer.rows) == len(gold.rows)
            and all(map(self._pairwise, answer.rows, gold.rows))
        )

    def _set(self, answer: Node, items: Sequence[Node], *, bare: bool = False) -> bool:
        found = self._elements(_unnamed(answer), bare=bare)
        return found is not None and self._covers(found, items) and self._covers(items, found, swapped=True)

    def _elements(self, answer: Node, *, bare: bool) -> Sequence[Node] | None:
        match answer:
            case Group("{", items, _):
                return [part for item in items for part in both_signs(item)]
            case Listing(items) if bare or self.policy.bare_list_for_set:
                return [part for item in _plain_items(items) for part in both_signs(item)]
        return list(both_signs(answer)) if is_double(answer) else None

    def _covers(self, found: Sequence[Node], items: Sequence[Node], *, swapped: bool = False) -> bool:
        """Whether each of `items` equals one of `found`."""
        return all(
            any(self.matches(item, one) if swapped else self.matches(one, item) for one in found) for item in items
        )

    def _list(self, answer: Node, items: Sequence[Node]) -> bool:
        answer = _unnamed(answer)
        if isinstance(answer, Group) and answer.opening == "{" and not self.policy.ordered_lists:
            return self._set(answer, items)
        if not isinstance(answer, Listing):
            return is_double(answer) and self._set(answer, items, bare=True)
        found, wanted = _plain_items(answer.items), _plain_items(items)
        if len(found) != len(wanted):
            return False
        if self.policy.ordered_lists:
            return self._pairwise(found, wanted)
        left = list(found)
        for item in wanted:
            place = next((place for place, one in enumerate(left) if self.matches(one, item)), None)
            if place is None:
                return False
            left.pop(place)
        return True

    def _region(self, answer: Node, gold: Node) -> bool:
        wanted, found = intervals(gold), intervals(_unnamed(answer))
        if wanted is None or found is None:
            return self._same_relation(answer, gold)
        names = {name for name, _ in (wanted, found) if name}
        plain = [isinstance(_unnamed(node), Relation) for node in (answer, gold)]
        if len(names) > 1 or (plain[0] != plain[1] and not self.policy.inequality_for_interval):
            return False
        return len(wanted[1]) == len(found[1]) and all(
            any(self._same_interval(one, other) for one in found[1]) for other in wanted[1]
        )

    def _same_interval(self, answer: "Interval", gold: "Interval") -> bool:
        return answer.closed == gold.closed and self._same(answer.low, gold.low) and self._same(answer.high, gold.high)

    def _same_chain(self, answer: Node, gold: Relation) -> bool:
        """Several relations in a row, `x/2 = y/3 = z`: part by part."""
        if not isinstance(answer, Relation) or answer.signs != gold.signs:
            return False
        return all(map(self._same, answer.parts, gold.parts))

    def _same_relation(self, answer: Node, gold: Node) -> bool:
        """Inequalities of more than a bare variable."""
        if not (isinstance(answer, Relation) and isinstance(gold, Relation)):
            return False
        if len(gold.signs) > 1:
            return self._same_chain(answer, gold)
        if len(answer.signs) != 1 or gold.signs[0] not in _ORDERS:
            return False
        if not all(map(is_expression, (*answer.parts, *gold.parts))):
            return False
        flipped = Relation((_FLIPPED.get(answer.signs[0], ""),), answer.parts[::-1])
        return any(
            one.signs == gold.signs
            and self.arithmetic.proportional(_difference(one), _difference(gold), positive=gold.signs[0] != "!=")
            for one in (answer, flipped)
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`; `closed` says which ends belong to it."""

    low: Node
    high: Node
    closed: tuple[bool, bool]


_LOWEST, _HIGHEST = Call("neg", (Symbol("oo"),)), Symbol("oo")


def intervals(node: Node) -> tuple[str, list[Interval]] | None:
    """The intervals that a region consists of, and the variable that it is said of (empty where none is)."""
    match node:
        case Group("(" | "[" as opening, (low, high), closing):
            return "", [Interval(low, high, (opening == "[", closing == "]"))]
        case Union(parts):
            found = [intervals(part) for part in parts]
            if any(one is None for one in found):
                return None
            names = {one[0] for one in found if one is not None}
            return (
                ("".join(names), [each for one in found if one is not None for each in one[1]])
                if len(names) == 1
                else None
            )
        case Relation(("in",), (Symbol(name), region)):
            inner = intervals(region)
            return None if inner is None else (name, inner[1])
        case Relation(signs, parts) if set(signs) <= set(_ORDERS):
            return _of_inequality(signs, parts)
    return None


def _of_inequality(signs: Sequence[str], parts: Sequence[Node]) -> tuple[str, list[Interval]] | None:
    match signs, parts:
        case [sign], [Symbol(name), bound] if not is_constant(name):
            return name, _half_line(sign, bound)
        case [sign], [bound, Symbol(name)] if not is_constant(name):
            return name, _half_line(_FLIPPED[sign], bound)
        case [("<" | "<=") as left, ("<" | "<=") as right], [low, Symbol(name), high]:
            return name, [Interval(low, high, (left == "<=", right == "<="))]
        case [(">" | ">=") as left, (">" | ">=") as right], [high, Symbol(name), low]:
            return name, [Interval(low, high, (right == ">=", left == ">="))]
    return None


def _half_line(sign: str, bound: Node) -> list[Interval]:
    below = Interval(_LOWEST, bound, (False, sign == "<="))
    above = Interval(bound, _HIGHEST, (sign == ">=", False))
    return [below, above] if sign == "!=" else [below] if sign in ("<", "<=") else [above]


def is_constant(name: str) -> bool:
    """Whether a name is of a constant that no answer assigns to."""
    return name in ("pi", "oo")


def is_choice(node: Node) -> bool:
    """Whether a gold answer is a letter to choose: A to J."""
    return isinstance(node, Symbol) and len(node.name) == 1 and node.name in "ABCDEFGHIJ"


def is_expression(node: Node) -> bool:
    """Whether a tree is of numbers, symbols, operators and functions only."""
    if isinstance(node, Number | Symbol):
        return True
    return isinstance(node, Call) and all(
        is_expression(part) or (node.name == "det" and isinstance(part, Matrix)) for part in node.arguments
    )


def both_signs(node: Node) -> Iterator[Node]:
    """The two values of an expression with `±`; the expression itself where it has none."""
    if not is_double(node):
        yield node
        return
    yield _signed(node, "+")
    yield _signed(node, "-")


def is_double(node: Node) -> bool:
    """Whether an expression has a `±`."""
    if isinstance(node, PlusMinus):
        return True
    return isinstance(node, Call) and any(map(is_double, node.arguments))


def _signed(node: Node, sign: str) -> Node:
    match node:
        case PlusMinus(left, right):
            right = _signed(right, sign)
            right = right if sign == "+" else Call("neg", (right,))
            return right if left == _ZERO else Call("+", (_signed(left, sign), right))
        case Call(name, arguments):
            return Call(name, tuple(_signed(argument, sign) for argument in arguments))
    return node


def _difference(equation: Relation) -> Node:
    left, right = equation.parts
    return left if right == _ZERO else Call("+", (left, Call("neg", (right,))))


def _unnamed(node: Node) -> Node:
    """What is named in `D = (0, 1)` and `(x, y) = (1, 2)`; for anything else itself."""
    match node:
        case Relation(("=",), (name, value)) if _is_name(name):
            return value
    return node


def _is_name(node: Node) -> bool:
    """Whether an answer may name its value so: `x`, `f(x)` or `(x, y)`."""
    match node:
        case Symbol(name):
            return not is_constant(name)
        case Call(name, _):
            return name.startswith("fn:")
        case Group("(", names, ")"):
            return all(isinstance(name, Symbol) for name in names)
    return False


def _stated(chain: Relation) -> Sequence[Node]:
    """The values that a chain `x = 3 + 2 = 5` states: all but the name before them."""
    first, *rest = chain.parts
    return rest if _is_name(first) and first != rest[-1] else chain.parts


def _plain_items(items: Sequence[Node]) -> Sequence[Node]:
    """A list whose first item names it, `n = 1, 2, 3`, without the name."""
    first, *rest = items
    named = isinstance(first, Relation) and first.signs == ("=",) and isinstance(first.parts[0], Symbol)
    if named and isinstance(first, Relation) and rest and not any(isinstance(item, Relation) for item in rest):
        return [first.parts[1], *rest]
    return list(items)


def _constant_of_integration(node: Node) -> bool:
    """Whether `C` is added to an expression that it does not occur in otherwise."""
    parts = list(_summands(node))
    return Symbol("C") in parts and sum("C" in symbols(part) for part in parts) == 1


def _summands(node: Node) -> Iterator[Node]:
    if isinstance(node, Call) and node.name == "+":
        for part in node.arguments:
            yield from _summands(part)
    else:
        yield node


def _words(node: Node) -> str | None:
    match node:
        case Words(text):
            return _plain(text)
        case Symbol(name) if len(name) == 1:
            return name.casefold()
        case Group("(", (Symbol(name),), ")"):
            return name.casefold()
    return None


def _plain(text: str) -> str:
    return " ".join(text.strip().strip("().:").split()).casefold()


def _is_known(unit: str, common: tuple[str, Fraction]) -> bool:
    from envhub.rewards.math_verify.units import is_unit

    return unit in ("$", "deg") or is_unit(unit)
