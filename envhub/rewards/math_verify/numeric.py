"""Equality of expressions by their values at random points, with mpmath. Runs in a process that can be killed."""

import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from envhub.rewards.math_verify.compare import Comparison, places_of, same_number, stands_for
from envhub.rewards.math_verify.exact import TooCostlyError, UndefinedError, exact
from envhub.rewards.math_verify.nodes import Call, Matrix, Node, Symbol, symbols, variables
from envhub.rewards.math_verify.parser import parse, readings
from envhub.rewards.math_verify.policy import Policy

_DIGITS = 100
_ROUNDING = 80  # digits of which the rest may be rounding
_TOLERANCE = 35  # digits that agree
_POINTS = 3
_TRIES = 24
_MOST_MAGNITUDE = 10**6  # exponents of e beyond which nothing is computed
_MEMORY = 512 << 20
_FUNCTIONS = {
    "ln": "log", "log": "log", "abs": "fabs", **{name: name for name in (
        "sqrt", "floor", "ceil", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    )},
}  # fmt: skip


class NoPointsError(ValueError):
    """The expressions have values at too few points in common."""


def decide(answer: str, gold: str, policy: Mapping[str, Any], parted: bool) -> bool:
    """Whether an answer means the same as the gold answer; both are what boxes hold. Raises ValueError where it is not found out.

    An answer that is too costly to compute is wrong.
    """
    import resource

    import mpmath

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    comparison = Comparison(NumericArithmetic(), Policy.model_validate(policy))
    known = parse(gold, thousands=False)
    try:
        with mpmath.workdps(_DIGITS):
            return any(comparison(node, known) for node in readings(answer, parted=parted))
    except TooCostlyError:
        return False


class NumericArithmetic:
    """Decides by values at points: the reals where nothing imaginary occurs, else the complex numbers."""

    def same(self, answer: Node, gold: Node, policy: Policy) -> bool:
        """Whether both have equal values wherever one of them has any."""
        values = exact(answer), exact(gold)
        if values[0] is not None and values[1] is not None:
            return same_number(values[0], values[1], answer, gold, policy)
        if not variables(answer) and not variables(gold):
            return self._same_constant(answer, gold, policy)
        pairs = self._pairs(answer, gold, positive=policy.positive_variables)
        return all(_close(one, other) for one, other in pairs)

    def _same_constant(self, answer: Node, gold: Node, policy: Policy) -> bool:
        imaginary = "i" in symbols(answer) | symbols(gold)
        one, other = (_value(node, {}, imaginary) for node in (answer, gold))
        if one is None:
            raise UndefinedError("it has no value")
        if other is None:
            raise NoPointsError("the gold answer has no value")
        if _close(one, other):
            return True
        places = places_of(answer)
        if places is None or places < policy.long_decimal or one.imag or other.imag:
            return False
        return stands_for(one, other, places)

    def proportional(self, answer: Node, gold: Node, *, positive: bool) -> bool:
        """Whether the quotient of both is one constant, not 0."""
        quotients = []
        for one, other in self._pairs(answer, gold):
            if not one or not other:
                if one or other:
                    return False
                continue
            quotients.append(one / other)
        if not quotients:
            raise NoPointsError("both sides are equal everywhere")
        return all(_close(quotient, quotients[0]) for quotient in quotients) and (not positive or quotients[0].real > 0)

    def differ_by_constant(self, answer: Node, gold: Node) -> bool:
        """Whether the difference of both is one constant."""
        pairs = self._pairs(answer, gold)
        first, *rest = [_snapped(one - other, max(abs(one), abs(other))) for one, other in pairs]
        return all(_close(first, other) for other in rest)

    def _pairs(self, answer: Node, gold: Node, *, positive: bool = False) -> list[tuple[Any, Any]]:
        """The values of both at points where both have one. A point where only one has settles that they differ.

        Raises NoPointsError, and UndefinedError for that.
        """
        names = sorted(variables(answer) | variables(gold))
        imaginary = "i" in symbols(answer) | symbols(gold)
        rng = random.Random("envhub")
        found: list[tuple[Any, Any]] = []
        for number in range(_TRIES):
            point = _point(names, rng, positive or number % 2 == 0)
            one, other = _value(answer, point, imaginary), _value(gold, point, imaginary)
            if (one is None) != (other is None):
                raise UndefinedError("one has a value where the other has none")
            if one is not None and other is not None:
                found.append((one, other))
            if len(found) >= 2 * _POINTS:
                break
        if len(found) < _POINTS:
            raise NoPointsError("there are too few points at which both have a value")
        return found


def _point(names: Sequence[str], rng: random.Random, positive: bool) -> dict[str, Any]:
    from mpmath import mpf

    return {
        name: mpf(rng.randint(10**11, 4 * 10**12)) / 10**12 * (1 if positive else rng.choice((1, -1))) for name in names
    }


def _close(one: Any, other: Any) -> bool:
    """Equal to 35 digits; only 0 equals 0, however small the other is."""
    from mpmath import mpf

    return bool(abs(one - other) <= mpf(10) ** -_TOLERANCE * max(abs(one), abs(other)))


def _snapped(value: Any, scale: Any) -> Any:
    """0 for what rounding leaves of values of that scale that cancel."""
    from mpmath import mpf

    return mpf(0) if abs(value) < mpf(10) ** -_ROUNDING * abs(scale) else value


def _value(node: Node, point: Mapping[str, Any], imaginary: bool) -> Any:
    """The value at a point; None where there is none, or none that is real where nothing imaginary occurs."""
    import mpmath

    with mpmath.workdps(_DIGITS):
        try:
            value = _computed(node, point)
        except (ZeroDivisionError, UndefinedError, ValueError, OverflowError) as problem:
            if isinstance(problem, TooCostlyError):
                raise
            return None
        if not mpmath.isfinite(value):
            return None
        if not imaginary and mpmath.im(value):
            if abs(mpmath.im(value)) > mpmath.mpf(10) ** -_TOLERANCE * abs(value):
                return None
            value = mpmath.re(value)
        return value


def _computed(node: Node, point: Mapping[str, Any]) -> Any:
    import mpmath

    known = exact(node)
    if known is not None:
        return mpmath.mpf(known.numerator) / known.denominator
    match node:
        case Symbol("i"):
            return mpmath.mpc(0, 1)
        case Symbol("e"):
            return +mpmath.e
        case Symbol("pi"):
            return +mpmath.pi
        case Symbol("oo"):
            raise UndefinedError("it is infinite")
        case Symbol(name):
            return point[name]
        case Call("det", (Matrix(rows),)):
            return mpmath.det(mpmath.matrix([[_computed(entry, point) for entry in row] for row in rows]))
        case Call(name, arguments):
            value = _applied(name, [_computed(argument, point) for argument in arguments], arguments)
            if not mpmath.isfinite(value):
                raise UndefinedError("it is infinite")
            return value
    raise UndefinedError("it is no expression")


def _applied(name: str, values: list[Any], written: Sequence[Node]) -> Any:
    import mpmath

    if name.startswith("fn:"):
        seed = "/".join([name, *(mpmath.nstr(value, 25) for value in values)])
        return mpmath.mpf(random.Random(seed).randint(1, 10**30)) / 10**29
    match name, values:
        case "+", [left, right]:
            return _snapped(left + right, max(abs(left), abs(right)))
        case "*", [left, right]:
            return left * right
        case "/", [top, bottom]:
            return top / bottom
        case "neg", [value]:
            return -value
        case "^", [base, power]:
            return _raised(base, power, exact(written[1]))
        case "root", [value, degree]:
            return _raised(value, 1 / degree, _inverse(exact(written[1])))
        case "!", [value]:
            if abs(value) > 1_000:
                raise TooCostlyError("it holds a factorial that is too large")
            return mpmath.gamma(value + 1)
        case "binom", [top, bottom]:
            if max(abs(top), abs(bottom)) > 1_000:
                raise TooCostlyError("it holds a binomial that is too large")
            return mpmath.binomial(top, bottom)
        case (("floor" | "ceil"), [value]) if not _snapped(value - mpmath.nint(value), value):
            return mpmath.nint(value)
        case "log", [value, base]:
            return mpmath.log(value) / mpmath.log(base)
        case ("exp", [value]):
            return _raised(+mpmath.e, value, None)
    if name not in _FUNCTIONS or len(values) != 1:
        raise UndefinedError(f"there is no {name} of {len(values)} values")
    if abs(values[0]) > _MOST_MAGNITUDE**2:
        raise TooCostlyError("it holds a function of too large a number")
    return _snapped(getattr(mpmath, _FUNCTIONS[name])(values[0]), 1 + abs(values[0]))


def _inverse(value: Fraction | None) -> Fraction | None:
    return 1 / value if value else None


def _raised(base: Any, power: Any, rational: Fraction | None) -> Any:
    """A power; of a negative number with an odd root the real one."""
    import mpmath

    if base and abs(power) * (1 + abs(mpmath.log(abs(base)))) > _MOST_MAGNITUDE:
        raise TooCostlyError("it holds a power that is too large")
    if rational is not None and rational.denominator % 2 == 1 and not mpmath.im(base) and mpmath.re(base) < 0:
        return (-1) ** (rational.numerator % 2) * (-mpmath.re(base)) ** power
    return base**power
