"""Exact values of closed expressions over the rationals, by arithmetic whose size is bounded before it is done."""

import functools
import math
from fractions import Fraction

from envhub.rewards.math_verify.nodes import Call, Node, Number, Symbol, children

MOST_EXPONENT = 10_000
MOST_BITS = 40_000
MOST_FACTORIAL = 3_000
_MOST_ROOTED = 4_000  # bits of a number whose root is searched


class TooCostlyError(ValueError):
    """The value is larger than an answer may be."""


class UndefinedError(ValueError):
    """The expression has no value: it divides by zero, or the like."""


@functools.lru_cache(maxsize=512)
def exact(node: Node) -> Fraction | None:
    """The value of an expression that is rational by arithmetic alone; None for any other.

    Raises TooCostlyError before anything large is computed, and UndefinedError.
    """
    match node:
        case Number(value, _):
            return value
        case Call(name, arguments):
            values = [exact(argument) for argument in arguments]
            if any(value is None for value in values):
                return None
            return _bounded(_computed(name, [value for value in values if value is not None]))
    return None


def _computed(name: str, values: list[Fraction]) -> Fraction | None:
    match name, values:
        case "+", [left, right]:
            return left + right
        case "neg", [value]:
            return -value
        case "*", [left, right]:
            return left * right
        case "/", [top, bottom]:
            if not bottom:
                raise UndefinedError("it divides by zero")
            return top / bottom
        case "^", [base, power]:
            return _power(base, power)
        case "!", [value]:
            if value.denominator != 1 or value < 0:
                raise UndefinedError("it has a factorial of what is no natural number")
            if value > MOST_FACTORIAL:
                raise TooCostlyError("it holds a factorial that is too large")
            return Fraction(math.factorial(int(value)))
        case "binom", [top, bottom]:
            if top.denominator != 1 or bottom.denominator != 1 or top < 0 or bottom < 0:
                return None
            if top > MOST_FACTORIAL:
                raise TooCostlyError("it holds a binomial that is too large")
            return Fraction(math.comb(int(top), int(bottom)))
        case "abs", [value]:
            return abs(value)
        case "floor", [value]:
            return Fraction(math.floor(value))
        case "ceil", [value]:
            return Fraction(math.ceil(value))
        case "sqrt", [value]:
            return _root(value, 2)
        case "root", [value, degree]:
            if degree.denominator != 1 or not 2 <= degree <= 100:
                return None
            return _root(value, int(degree))
        case "log", [value, base]:
            return _logarithm(value, base)
    return None


def _power(base: Fraction, power: Fraction) -> Fraction | None:
    if abs(power.numerator) > MOST_EXPONENT:
        raise TooCostlyError(f"it holds a power over {MOST_EXPONENT}")
    if not base and power < 0:
        raise UndefinedError("it divides by zero")
    if not base and not power:
        raise UndefinedError("it holds 0 to the power of 0")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(power.numerator) > MOST_BITS and abs(base) != 1:
        raise TooCostlyError("it holds a power that is too large")
    if power.denominator > 100:
        return None
    rooted = base if power.denominator == 1 else _root(base, power.denominator)
    return None if rooted is None else Fraction(rooted**power.numerator)


def _root(value: Fraction, degree: int) -> Fraction | None:
    """The rational root, where there is one; of a negative number the real one of an odd degree."""
    if value < 0:
        if degree % 2 == 0:
            return None
        rooted = _root(-value, degree)
        return None if rooted is None else -rooted
    top, bottom = (_integer_root(part, degree) for part in (value.numerator, value.denominator))
    return None if top is None or bottom is None else Fraction(top, bottom)


def _integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    if value.bit_length() > _MOST_ROOTED:
        return None
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**degree < value else (low, middle)
    return low if low**degree == value else None


def _logarithm(value: Fraction, base: Fraction) -> Fraction | None:
    if value <= 0 or base <= 0 or base == 1:
        raise UndefinedError("it holds a logarithm that has no value")
    if value == 1:
        return Fraction(0)
    if base < 1:
        inverse = _logarithm(value, 1 / base)
        return None if inverse is None else -inverse
    inverted = value < 1
    value = 1 / value if inverted else value
    power, reached = 0, 1
    while reached < value.numerator and power < 1_000:  # the powers of a reduced fraction are reduced
        reached, power = reached * base.numerator, power + 1
    if reached != value.numerator or base.denominator**power != value.denominator:
        return None
    return Fraction(-power if inverted else power)


def _bounded(value: Fraction | None) -> Fraction | None:
    if value is not None and max(value.numerator.bit_length(), value.denominator.bit_length()) > 2 * MOST_BITS:
        raise TooCostlyError("it holds a number that is too large")
    return value


def check_cost(node: Node) -> None:
    """Raises TooCostlyError or UndefinedError where some closed part of a tree is too large or has no value."""
    seen = [node]
    while seen:
        part = seen.pop()
        exact(part) if isinstance(part, Call) else None
        if isinstance(part, Call) and part.name == "^" and _height(part) > 2:
            raise TooCostlyError("it holds a tower of powers")
        seen += children(part)


def _height(node: Node) -> int:
    """How many powers stand on each other in exponents."""
    if isinstance(node, Symbol | Number):
        return 0
    below = max((_height(child) for child in children(node)), default=0)
    if isinstance(node, Call) and node.name in ("^", "exp"):
        exponent = node.arguments[-1]
        return max(_height(node.arguments[0]), 1 + _height(exponent))
    return below
