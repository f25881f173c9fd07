"""Level 2: one condition or one comprehension."""

from envhub.environments.sandbox_code.bank import Level, args, choice, integer, many, sentence, text

task = Level(2)

INT = integer()
SMALL = integer(-9, 9)
INTS = many(SMALL)
WORDS = many(text(low=1, high=6), 0, 5)
LETTERS = text("aeioubcdfg", 0, 10)


@task(cases=[(15, 0, 10), (-3, 0, 10), (5, 0, 10), (0, 0, 0)], draw=args(INT, integer(-50, 0), integer(1, 50)))
def clamp(n: int, low: int, high: int) -> int:
    """Return n limited to the range from low to high: low if n is less than low, high if n is greater than high,
    otherwise n. low is never greater than high."""
    return max(low, min(n, high))


@task(cases=[(-8,), (0,), (3,), (1,)], draw=args(integer(-2, 2)))
def sign(n: int) -> int:
    """Return 1 if n is positive, -1 if n is negative and 0 if n is 0."""
    return (n > 0) - (n < 0)


@task(cases=[(9,), (10,), (15,), (7,), (0,)], draw=args(integer(0, 60)))
def fizz_or_buzz(n: int) -> str:
    """Return "fizz" if n is divisible by 3, otherwise "buzz" if n is divisible by 5, otherwise the number n as a
    string."""
    return "fizz" if n % 3 == 0 else "buzz" if n % 5 == 0 else str(n)


@task(cases=[(1, 3, 2), (5, 5, 5), (-1, -2, -3), (0, 4, 9)], draw=args(INT, INT, INT))
def max_of_three(a: int, b: int, c: int) -> int:
    """Return the largest of a, b and c."""
    return max(a, b, c)


@task(cases=[(9, 4, 7), (5, 5, 5), (-1, -2, -3), (3, 1, 2)], draw=args(INT, INT, INT))
def median_of_three(a: int, b: int, c: int) -> int:
    """Return the middle one of a, b and c when they are put in ascending order."""
    return sorted([a, b, c])[1]


@task(cases=[(73,), (50,), (49,), (0,)], draw=args(integer(0, 100)))
def pass_or_fail(score: int) -> str:
    """Return "pass" if score is at least 50, otherwise "fail"."""
    return "pass" if score >= 50 else "fail"


@task(cases=[(3, 8), (8, 3), (5, 5), (-4, 4)], draw=args(INT, INT))
def distance(a: int, b: int) -> int:
    """Return the absolute difference of a and b."""
    return abs(a - b)


@task(cases=[([1, 2, 3, 4],), ([],), ([1, 3],), ([0, -2, -3],)], draw=args(INTS))
def keep_even(numbers: list[int]) -> list[int]:
    """Return a new list with the even numbers of the list, in their order."""
    return [n for n in numbers if n % 2 == 0]


@task(cases=[([3, -1, 0, 5],), ([],), ([-2, 0],), ([7],)], draw=args(INTS))
def keep_positive(numbers: list[int]) -> list[int]:
    """Return a new list with the numbers that are greater than 0, in their order."""
    return [n for n in numbers if n > 0]


@task(cases=[([1, 2, 3],), ([],), ([-4],), ([0, 5],)], draw=args(INTS))
def square_all(numbers: list[int]) -> list[int]:
    """Return a new list with the square of each number, in the same order."""
    return [n * n for n in numbers]


@task(cases=[([1, 2, 3],), ([],), ([-4],), ([0, 5],)], draw=args(INTS))
def double_all(numbers: list[int]) -> list[int]:
    """Return a new list with each number multiplied by 2, in the same order."""
    return [n * 2 for n in numbers]


@task(cases=[([3, -1, 0, 5],), ([],), ([-2, 0],), ([7],)], draw=args(INTS))
def count_negative(numbers: list[int]) -> int:
    """Return how many of the numbers are less than 0."""
    return sum(n < 0 for n in numbers)


@task(cases=[([1, 2, 3, 4],), ([],), ([1, 3],), ([-2],)], draw=args(INTS))
def sum_even(numbers: list[int]) -> int:
    """Return the sum of the even numbers in the list; 0 if there are none."""
    return sum(n for n in numbers if n % 2 == 0)


@task(cases=[(3,), (1,), (0,), (10,)], draw=args(integer(0, 40)))
def sum_of_squares(n: int) -> int:
    """Return the sum of the squares of 1, 2, ..., n; 0 if n is 0."""
    return sum(i * i for i in range(1, n + 1))


@task(cases=[(["hi", "you"],), ([],), ([""],), (["a", "bcd", "ef"],)], draw=args(WORDS))
def word_lengths(words: list[str]) -> list[int]:
    """Return a list with the length of each word, in the same order."""
    return [len(word) for word in words]


@task(cases=[(["a", "tree", "owl"], 2), ([], 3), (["ab"], 2), (["abc"], 0)], draw=args(WORDS, integer(0, 5)))
def words_longer_than(words: list[str], n: int) -> list[str]:
    """Return a list of the words that have more than n characters, in their order."""
    return [word for word in words if len(word) > n]


@task(cases=[("banana",), ("",), ("xyz",), ("UPPER a",)], draw=args(LETTERS))
def count_vowels(s: str) -> int:
    """Return how many characters of s are one of the lower-case vowels a, e, i, o, u."""
    return sum(c in "aeiou" for c in s)


@task(cases=[("banana",), ("",), ("xyz",), ("aEi",)], draw=args(LETTERS))
def remove_vowels(s: str) -> str:
    """Return s without the lower-case vowels a, e, i, o, u."""
    return "".join(c for c in s if c not in "aeiou")


@task(cases=[("a1b22",), ("",), ("abc",), ("007",)], draw=args(text("ab0123456789", 0, 8)))
def digits_only(s: str) -> str:
    """Return a string with only the characters 0 to 9 of s, in their order."""
    return "".join(c for c in s if c in "0123456789")


@task(cases=[(3, 10), (5, 4), (1, 3), (4, 8)], draw=args(integer(1, 9), integer(0, 40)))
def multiples(k: int, limit: int) -> list[int]:
    """Return the positive multiples of k that are at most limit, in ascending order; k is positive."""
    return list(range(k, limit + 1, k))


@task(cases=[([4, 5], 9), ([], 9), ([0], 1), ([], 0)], draw=args(many(SMALL, 0, 2), INT))
def first_or_default(items: list[int], default: int) -> int:
    """Return the first element of items, or default if items is empty."""
    return items[0] if items else default


@task(cases=[("level",), ("ab",), ("",), ("Aa",)], draw=args(text("ab", 0, 5)))
def is_palindrome(s: str) -> bool:
    """Return True if s reads the same forwards and backwards, otherwise False. Upper and lower case differ; the empty
    string is a palindrome."""
    return s == s[::-1]


@task(cases=[(2024,), (1900,), (2000,), (2023,)], draw=args(choice(*range(1896, 2025, 2))))
def is_leap_year(year: int) -> bool:
    """Return True if year is a leap year, otherwise False. Leap years are divisible by 4, except those divisible by
    100 but not by 400."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


@task(cases=[(7, 2), (7, 0), (0, 3), (0, 0)], draw=args(integer(0, 99), integer(0, 4)))
def safe_divide(a: int, b: int) -> int | None:
    """Return a divided by b, rounded down to an int, or None if b is 0. Neither a nor b is negative."""
    return None if b == 0 else a // b


@task(cases=[("ada lovelace",), ("",), ("x",), ("one two three",)], draw=args(sentence()))
def initials(name: str) -> str:
    """Return the first letters of the words of name, in upper case and without spaces. Words are separated by single
    spaces; the result for the empty string is the empty string."""
    return "".join(word[0].upper() for word in name.split())


@task(cases=[([1, 2, 3],), ([],), ([4],), ([5, 6],)], draw=args(INTS))
def drop_first(items: list[int]) -> list[int]:
    """Return a new list with all elements of items but the first; the result for an empty list is an empty list."""
    return items[1:]


@task(cases=[([1, 2],), ([],), ([3, 0],), ([-1],)], draw=args(many(integer(-1, 9), 0, 4)))
def all_positive(numbers: list[int]) -> bool:
    """Return True if every number in the list is greater than 0, otherwise False. The result for an empty list is
    True."""
    return all(n > 0 for n in numbers)


@task(cases=[([5, 7, 5], 5), ([1, 2], 3), ([], 1), ([4, 3], 3)], draw=args(many(integer(0, 4)), integer(0, 4)))
def find_index(numbers: list[int], n: int) -> int:
    """Return the index, counted from 0, of the first element equal to n, or -1 if there is none."""
    return numbers.index(n) if n in numbers else -1


@task(cases=[([1, 2, 1], 1), ([], 1), ([3], 1), ([1], 1)], draw=args(many(integer(0, 3)), integer(0, 3)))
def remove_value(numbers: list[int], n: int) -> list[int]:
    """Return a new list without the elements that are equal to n; the others keep their order."""
    return [item for item in numbers if item != n]


@task(cases=[("the big cat",), ("",), ("one",), ("  two  words ",)], draw=args(text("ab  ", 0, 12)))
def count_words(s: str) -> int:
    """Return the number of words in s. Words are separated by one or more spaces; spaces may also lead and trail."""
    return len(s.split())


@task(cases=[("abcdef", 3), ("abc", 0), ("ab", 5), ("", 2)], draw=args(text(), integer(0, 6)))
def last_n_chars(s: str, n: int) -> str:
    """Return the last n characters of s, or all of s if it has fewer than n. n is not negative, and the result for
    n = 0 is the empty string."""
    return s[-n:] if n else ""


@task(cases=[([1, 2, 3, 4, 5],), ([],), ([7],), ([8, 9],)], draw=args(INTS))
def every_second(items: list[int]) -> list[int]:
    """Return a new list with the elements at the indices 0, 2, 4 and so on."""
    return items[::2]


@task(
    cases=[([1, 2], [10, 20]), ([], []), ([5], [-5]), ([1, 1, 1], [1, 2, 3])],
    draw=lambda rng: tuple([rng.randint(-9, 9) for _ in range(size)] for size in [rng.randint(0, 6)] * 2),
)
def add_lists(a: list[int], b: list[int]) -> list[int]:
    """Return a list with the sum of the elements of a and b at each index. a and b have the same length."""
    return [x + y for x, y in zip(a, b, strict=True)]


@task(cases=[("abc", 2), ("", 3), ("x", 0), ("hi", 1)], draw=args(text(high=5), integer(0, 4)))
def stretch(s: str, n: int) -> str:
    """Return a string in which each character of s is repeated n times, in order; stretch("abc", 2) is "aabbcc"."""
    return "".join(c * n for c in s)


@task(cases=[("hello",), ("",), ("x",), ("ab",)], draw=args(text()))
def swap_ends(s: str) -> str:
    """Return s with its first and its last character exchanged; a string of fewer than 2 characters stays as it is."""
    return s if len(s) < 2 else s[-1] + s[1:-1] + s[0]


@task(cases=[(["b", "a"], "-"), ([], ","), (["x"], "+"), (["a", "", "c"], "")], draw=args(WORDS, choice("-", ", ", "")))
def join_words(words: list[str], separator: str) -> str:
    """Return the words joined into one string with separator between each two of them."""
    return separator.join(words)


@task(cases=[("apple",), ("pear",), ("",), ("Eve",)], draw=args(text("aeiou" * 4 + "bcdfghklmnprst", 0, 5)))
def starts_with_vowel(s: str) -> bool:
    """Return True if the first character of s is a vowel (a, e, i, o or u, in lower or upper case), otherwise False.
    The result for the empty string is False."""
    return s != "" and s[0].lower() in "aeiou"
