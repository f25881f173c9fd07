"""Level 1: functions of one line."""

from envhub.environments.sandbox_code.bank import Level, args, choice, integer, many, text

task = Level(1)

INT = integer()
WORD = text(low=1)
SHORT = text("ab", 0, 3)
MIXED = text("abcXYZ", 0, 8)
INTS = many(integer())
SOME_INTS = many(integer(), low=1)
BOOL = choice(True, False)


@task(cases=[(1, 2), (0, 0), (-3, 3), (50, 49)], draw=args(INT, INT))
def add(a: int, b: int) -> int:
    """Return the sum of a and b."""
    return a + b


@task(cases=[(5, 2), (0, 0), (2, 5), (-3, -4)], draw=args(INT, INT))
def subtract(a: int, b: int) -> int:
    """Return a minus b."""
    return a - b


@task(cases=[(2, 3), (0, 7), (-4, 5), (-3, -3)], draw=args(INT, INT))
def multiply(a: int, b: int) -> int:
    """Return the product of a and b."""
    return a * b


@task(cases=[(4,), (0,), (-3,), (21,)], draw=args(INT))
def double(n: int) -> int:
    """Return n times 2."""
    return n * 2


@task(cases=[(4,), (0,), (-3,), (7,)], draw=args(INT))
def triple(n: int) -> int:
    """Return n times 3."""
    return n * 3


@task(cases=[(9,), (0,), (1,), (20,)], draw=args(integer(0, 999)))
def half(n: int) -> int:
    """Return half of the non-negative number n, rounded down to an int."""
    return n // 2


@task(cases=[(5,), (0,), (-3,), (12,)], draw=args(INT))
def square(n: int) -> int:
    """Return n multiplied by itself."""
    return n * n


@task(cases=[(2,), (0,), (-3,), (5,)], draw=args(INT))
def cube(n: int) -> int:
    """Return n to the power of 3."""
    return n**3


@task(cases=[(4,), (0,), (-7,), (1,)], draw=args(INT))
def negate(n: int) -> int:
    """Return n with the opposite sign."""
    return -n


@task(cases=[(4,), (0,), (-1,), (99,)], draw=args(INT))
def increment(n: int) -> int:
    """Return n plus 1."""
    return n + 1


@task(cases=[(4,), (0,), (1,), (-5,)], draw=args(INT))
def decrement(n: int) -> int:
    """Return n minus 1."""
    return n - 1


@task(cases=[(-4,), (0,), (7,), (-1,)], draw=args(INT))
def absolute_value(n: int) -> int:
    """Return the absolute value of n."""
    return abs(n)


@task(cases=[(4,), (7,), (0,), (-3,)], draw=args(INT))
def is_even(n: int) -> bool:
    """Return True if n is even, otherwise False."""
    return n % 2 == 0


@task(cases=[(3,), (8,), (0,), (-5,)], draw=args(INT))
def is_odd(n: int) -> bool:
    """Return True if n is odd, otherwise False."""
    return n % 2 == 1


@task(cases=[(5,), (-2,), (0,), (1,)], draw=args(INT))
def is_positive(n: int) -> bool:
    """Return True if n is greater than 0, otherwise False."""
    return n > 0


@task(cases=[(-5,), (2,), (0,), (-1,)], draw=args(INT))
def is_negative(n: int) -> bool:
    """Return True if n is less than 0, otherwise False."""
    return n < 0


@task(cases=[(2, 5), (5, 2), (3, 3), (-1, -4)], draw=args(INT, INT))
def larger(a: int, b: int) -> int:
    """Return the larger of a and b."""
    return max(a, b)


@task(cases=[(2, 5), (5, 2), (3, 3), (-1, -4)], draw=args(INT, INT))
def smaller(a: int, b: int) -> int:
    """Return the smaller of a and b."""
    return min(a, b)


@task(cases=[(7, 3), (6, 3), (0, 5), (4, 9)], draw=args(integer(0, 99), integer(1, 12)))
def remainder(a: int, b: int) -> int:
    """Return the remainder of a divided by b, where a is not negative and b is positive."""
    return a % b


@task(cases=[(27,), (0,), (5,), (130,)], draw=args(integer(0, 9999)))
def last_digit(n: int) -> int:
    """Return the last decimal digit of the non-negative number n as an int."""
    return n % 10


@task(cases=[(3, 3), (3, 4), (0, 0), (-1, 1)], draw=args(integer(0, 1), integer(0, 1)))
def are_equal(a: int, b: int) -> bool:
    """Return True if a and b are equal, otherwise False."""
    return a == b


@task(cases=[(6, 3), (7, 3), (0, 5), (5, 1)], draw=args(integer(0, 60), integer(1, 4)))
def is_divisible(a: int, b: int) -> bool:
    """Return True if a can be divided by the positive number b without a remainder, otherwise False."""
    return a % b == 0


@task(cases=[(2, 3), (5, 0), (0, 2), (-2, 5)], draw=args(integer(-9, 9), integer(0, 6)))
def power(a: int, b: int) -> int:
    """Return a to the power of b, where b is not negative."""
    return int(a**b)


@task(cases=[("abc",), ("",), ("hello you",), ("x",)], draw=args(text("abc de", 0, 15)))
def text_length(s: str) -> int:
    """Return the number of characters in s."""
    return len(s)


@task(cases=[("hello",), ("x",), ("Zoo",), (" a",)], draw=args(WORD))
def first_char(s: str) -> str:
    """Return the first character of the non-empty string s."""
    return s[0]


@task(cases=[("hello",), ("x",), ("Zoo!",), ("a ",)], draw=args(WORD))
def last_char(s: str) -> str:
    """Return the last character of the non-empty string s."""
    return s[-1]


@task(cases=[("hello",), ("",), ("Ab1!",), ("XY",)], draw=args(MIXED))
def upper_case(s: str) -> str:
    """Return s in upper case."""
    return s.upper()


@task(cases=[("HELLO",), ("",), ("Ab1!",), ("xy",)], draw=args(MIXED))
def lower_case(s: str) -> str:
    """Return s in lower case."""
    return s.lower()


@task(cases=[("abc",), ("",), ("x",), ("Hello you",)], draw=args(text("abc d")))
def reverse_text(s: str) -> str:
    """Return s with its characters in reverse order."""
    return s[::-1]


@task(cases=[("foo", "bar"), ("", ""), ("a", ""), ("", "b")], draw=args(text(), text()))
def concat(a: str, b: str) -> str:
    """Return the string a followed by the string b."""
    return a + b


@task(cases=[("ab", 3), ("x", 0), ("", 4), ("hey", 1)], draw=args(text(high=4), integer(0, 5)))
def repeat_text(s: str, n: int) -> str:
    """Return s repeated n times, where n is not negative."""
    return s * n


@task(cases=[("  hi ",), ("",), ("a b",), ("   ",)], draw=args(text("ab  ", 0, 8)))
def strip_spaces(s: str) -> str:
    """Return s without the spaces at its beginning and at its end."""
    return s.strip(" ")


@task(cases=[("hello", "he"), ("hello", "lo"), ("a", ""), ("", "a")], draw=args(SHORT, text("ab", 0, 2)))
def starts_with(s: str, prefix: str) -> bool:
    """Return True if s starts with prefix, otherwise False."""
    return s.startswith(prefix)


@task(cases=[("hello", "lo"), ("hello", "he"), ("a", ""), ("", "a")], draw=args(SHORT, text("ab", 0, 2)))
def ends_with(s: str, suffix: str) -> bool:
    """Return True if s ends with suffix, otherwise False."""
    return s.endswith(suffix)


@task(cases=[("hello", "ell"), ("hello", "x"), ("a", ""), ("", "a")], draw=args(text("ab", 0, 5), text("ab", 0, 3)))
def contains_text(s: str, part: str) -> bool:
    """Return True if part occurs in s, otherwise False."""
    return part in s


@task(cases=[("banana", "a"), ("", "a"), ("xyz", "a"), ("Aa", "a")], draw=args(text("abc"), choice("a", "b", "c")))
def count_char(s: str, c: str) -> int:
    """Return how many times the character c occurs in s."""
    return s.count(c)


@task(cases=[("",), ("a",), (" ",), ("hello",)], draw=args(text("ab", 0, 1)))
def is_empty(s: str) -> bool:
    """Return True if s is the empty string, otherwise False."""
    return s == ""


@task(cases=[(42,), (0,), (-7,), (1000,)], draw=args(INT))
def number_to_text(n: int) -> str:
    """Return the int n as a string."""
    return str(n)


@task(cases=[("42",), ("0",), ("-7",), ("1000",)], draw=lambda rng: (str(rng.randint(-999, 999)),))
def text_to_number(s: str) -> int:
    """Return the int that the string s spells in decimal digits, such as "42" or "-7"."""
    return int(s)


@task(cases=[([3, 1, 2],), ([5],), ([0, 9],), ([-1, -2],)], draw=args(SOME_INTS))
def first_element(items: list[int]) -> int:
    """Return the first element of the non-empty list items."""
    return items[0]


@task(cases=[([3, 1, 2],), ([5],), ([0, 9],), ([-1, -2],)], draw=args(SOME_INTS))
def last_element(items: list[int]) -> int:
    """Return the last element of the non-empty list items."""
    return items[-1]


@task(cases=[([3, 1, 2],), ([],), ([0],), ([7, 7, 7, 7],)], draw=args(INTS))
def list_length(items: list[int]) -> int:
    """Return the number of elements in the list items."""
    return len(items)


@task(cases=[([3, 1, 2],), ([],), ([-5, 5],), ([10],)], draw=args(INTS))
def list_sum(numbers: list[int]) -> int:
    """Return the sum of the numbers in the list; the sum of an empty list is 0."""
    return sum(numbers)


@task(cases=[([3, 7, 2],), ([5],), ([-4, -9],), ([1, 1],)], draw=args(SOME_INTS))
def list_max(numbers: list[int]) -> int:
    """Return the largest number in the non-empty list."""
    return max(numbers)


@task(cases=[([3, 7, 2],), ([5],), ([-4, -9],), ([1, 1],)], draw=args(SOME_INTS))
def list_min(numbers: list[int]) -> int:
    """Return the smallest number in the non-empty list."""
    return min(numbers)


@task(cases=[([3, 1, 2],), ([],), ([5, 5, -1],), ([9],)], draw=args(INTS))
def sort_list(numbers: list[int]) -> list[int]:
    """Return a new list with the numbers in ascending order."""
    return sorted(numbers)


@task(cases=[([3, 1, 2],), ([],), ([5],), ([0, 0, 1],)], draw=args(INTS))
def reverse_list(items: list[int]) -> list[int]:
    """Return a new list with the elements of items in reverse order."""
    return items[::-1]


@task(cases=[([3, 1], 1), ([], 1), ([2, 4], 3), ([0], 0)], draw=args(many(integer(0, 5), 0, 5), integer(0, 5)))
def contains_number(numbers: list[int], n: int) -> bool:
    """Return True if n is in the list numbers, otherwise False."""
    return n in numbers


@task(cases=[([1, 2], 3), ([], 5), ([0], 0), ([-1], 4)], draw=args(INTS, INT))
def append_item(items: list[int], item: int) -> list[int]:
    """Return a new list with the elements of items followed by item."""
    return [*items, item]


@task(cases=[(1, 2, 3), (0, 0, 0), (-5, 2, 3), (10, -20, 5)], draw=args(INT, INT, INT))
def add_three(a: int, b: int, c: int) -> int:
    """Return the sum of a, b and c."""
    return a + b + c


@task(cases=[(True, False), (True, True), (False, True), (False, False)], draw=args(BOOL, BOOL))
def both_true(a: bool, b: bool) -> bool:
    """Return True if a and b are both True, otherwise False."""
    return a and b


@task(cases=[("Ada",), ("",), ("Bo Li",), ("x",)], draw=args(WORD))
def greet(name: str) -> str:
    """Return the string "Hello, NAME!" with the argument name in place of NAME."""
    return f"Hello, {name}!"
