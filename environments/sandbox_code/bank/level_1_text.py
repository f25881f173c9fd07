"""Level 1, text: functions of one line."""

from envhub.environments.sandbox_code.bank import args, choice, either, integer, many, sentence, text
from envhub.environments.sandbox_code.bank.level_1 import task

INT = integer()
WORD = text(low=1)
SHORT = text("ab", 0, 3)
MIXED = text("abcXYZ", 0, 8)
LETTER = choice("a", "b", "c")


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


@task(cases=[("Ada",), ("",), ("Bo Li",), ("x",)], draw=args(WORD))
def greet(name: str) -> str:
    """Return the string "Hello, NAME!" with the argument name in place of NAME."""
    return f"Hello, {name}!"


@task(cases=[(True,), (False,), (False,), (True,)], draw=args(choice(True, False)))
def yes_or_no(answer: bool) -> str:
    """Return "yes" if answer is True, otherwise "no"."""
    return "yes" if answer else "no"


@task(cases=[("hello", 1), ("x", 0), ("Zoo!", 3), ("ab", 1)], draw=args(text(low=4), integer(0, 3)))
def char_at(s: str, index: int) -> str:
    """Return the character of s at index, counted from 0. index is always less than the length of s."""
    return s[index]


@task(cases=[("hello", 2), ("ab", 5), ("", 3), ("xyz", 0)], draw=args(text(), integer(0, 6)))
def first_n_chars(s: str, n: int) -> str:
    """Return the first n characters of s, or all of s if it has fewer than n. n is not negative."""
    return s[:n]


@task(cases=[("hello", 2), ("ab", 5), ("", 3), ("xyz", 0)], draw=args(text(), integer(0, 6)))
def skip_n_chars(s: str, n: int) -> str:
    """Return s without its first n characters; the empty string if s has n or fewer. n is not negative."""
    return s[n:]


@task(cases=[("hello",), ("x",), ("",), ("Zoo!",)], draw=args(text()))
def without_last_char(s: str) -> str:
    """Return s without its last character; the result for the empty string is the empty string."""
    return s[:-1]


@task(cases=[("hello",), ("ab",), ("abc",), ("Zoo!",)], draw=args(text(low=2)))
def without_end_chars(s: str) -> str:
    """Return s without its first and its last character. s has at least 2 characters."""
    return s[1:-1]


@task(cases=[("hello",), ("ab",), ("",), ("x",)], draw=args(text()))
def every_second_char(s: str) -> str:
    """Return the characters of s at the indices 0, 2, 4 and so on, as a string."""
    return s[::2]


@task(cases=[("hello",), ("x",), ("Zoo!",), ("ab",)], draw=args(WORD))
def first_and_last_char(s: str) -> str:
    """Return a string of two characters: the first and the last character of the non-empty string s."""
    return s[0] + s[-1]


@task(
    cases=[("banana", "a", "o"), ("", "a", "b"), ("xyz", "a", "b"), ("aaa", "a", "a")],
    draw=args(text("abc"), LETTER, LETTER),
)
def replace_char(s: str, old: str, new: str) -> str:
    """Return s with every occurrence of the character old replaced by the character new."""
    return s.replace(old, new)


@task(cases=[("a b c",), ("",), ("   ",), (" hello you ",)], draw=args(text("abc  ")))
def remove_spaces(s: str) -> str:
    """Return s without all its spaces."""
    return s.replace(" ", "")


@task(cases=[("hello",), ("",), ("WORLD",), ("x",)], draw=args(MIXED))
def capitalize_text(s: str) -> str:
    """Return s with its first character in upper case and all others in lower case; the empty string stays empty."""
    return s.capitalize()


@task(cases=[("Hello",), ("",), ("aBC",), ("XY",)], draw=args(MIXED))
def swap_upper_lower(s: str) -> str:
    """Return s with its upper case letters in lower case and its lower case letters in upper case."""
    return s.swapcase()


@task(cases=[("hi",), ("",), ("Go",), ("stop now",)], draw=args(MIXED))
def shout(s: str) -> str:
    """Return s in upper case, followed by "!"."""
    return s.upper() + "!"


@task(cases=[("123",), ("12a",), ("",), ("0",)], draw=args(either(text("0123456789"), text("01a", 0, 4))))
def is_digits(s: str) -> bool:
    """Return True if s is not empty and all its characters are digits, otherwise False."""
    return s.isdigit()


@task(cases=[("abc",), ("ab1",), ("",), ("Xyz",)], draw=args(either(MIXED, text("ab1 ", 0, 4))))
def is_letters(s: str) -> bool:
    """Return True if s is not empty and all its characters are letters, otherwise False."""
    return s.isalpha()


@task(cases=[("hello you",), ("",), ("one",), ("a b c",)], draw=args(sentence()))
def split_words(s: str) -> list[str]:
    """Return the list of the words of s, which are separated by single spaces; an empty list if s is empty."""
    return s.split()


@task(cases=[("a,b,c",), ("one",), ("x,,y",), ("1,2",)], draw=args(text("ab,", 1, 8)))
def split_at_commas(s: str) -> list[str]:
    """Return the list of the parts of s that its commas separate. s is not empty; a part may be."""
    return s.split(",")


@task(cases=[(["a", "b", "c"],), ([],), (["one"],), (["x", "yy"],)], draw=args(many(WORD, 0, 5)))
def join_with_commas(words: list[str]) -> str:
    """Return the words as one string with "," between each two of them; the result for no words is the empty string."""
    return ",".join(words)


@task(cases=[(["a", "b", "c"],), ([],), (["x"],), (["h", "i"],)], draw=args(many(text(low=1, high=1))))
def join_letters(letters: list[str]) -> str:
    """Return the letters joined into one string, with nothing between them; the result for no letters is the empty
    string."""
    return "".join(letters)


@task(cases=[("abc",), ("",), ("x",), ("a b",)], draw=args(text("abc d")))
def list_of_chars(s: str) -> list[str]:
    """Return a list of the characters of s, in order; an empty list if s is empty."""
    return list(s)


@task(cases=[("cab",), ("",), ("x",), ("banana",)], draw=args(text()))
def sort_chars(s: str) -> str:
    """Return a string of the characters of s in ascending order; the empty string stays empty."""
    return "".join(sorted(s))


@task(cases=[("banana",), ("",), ("x",), ("abc",)], draw=args(text("abcde")))
def count_different_chars(s: str) -> int:
    """Return how many different characters s has; the empty string has 0."""
    return len(set(s))


@task(cases=[("hello",), ("x",), ("zebra",), ("ba",)], draw=args(WORD))
def smallest_char(s: str) -> str:
    """Return the character of the non-empty string s that comes first in the alphabet. s has only lower case letters."""
    return min(s)


@task(cases=[("hello",), ("",), ("x",), ("a b",)], draw=args(text()))
def in_brackets(s: str) -> str:
    """Return "[", followed by s, followed by "]"."""
    return "[" + s + "]"


@task(cases=[("hi", "*"), ("", "-"), ("abc", "##"), ("x", "")], draw=args(text(), text("*-#", 0, 2)))
def surround(s: str, mark: str) -> str:
    """Return s with mark in front of it and mark behind it."""
    return mark + s + mark


@task(cases=[("Ada", "Byron"), ("Bo", "Li"), ("x", "y"), ("Al", "An")], draw=args(WORD, WORD))
def full_name(first: str, last: str) -> str:
    """Return first and last, separated by one space."""
    return f"{first} {last}"


@task(cases=[("Ada", 7), ("x", 0), ("", 3), ("Bo", -5)], draw=args(text(), INT))
def label_number(name: str, n: int) -> str:
    """Return a string of name, a colon, a space and the number n, such as "Ada: 7"."""
    return f"{name}: {n}"


@task(cases=[(1, 2), (0, 0), (10, 5), (3, 40)], draw=args(integer(0, 99), integer(0, 99)))
def sum_as_text(a: int, b: int) -> str:
    """Return the sum of the ints a and b as a string."""
    return str(a + b)


@task(
    cases=[("1", "2"), ("0", "0"), ("10", "-5"), ("3", "40")],
    draw=lambda rng: (str(rng.randint(-99, 99)), str(rng.randint(-99, 99))),
)
def sum_of_texts(a: str, b: str) -> int:
    """Return the sum of the two ints that the strings a and b spell, such as 3 for "1" and "2"."""
    return int(a) + int(b)


@task(cases=[(7, 3), (123, 2), (0, 4), (42, 2)], draw=args(integer(0, 9999), integer(1, 6)))
def zero_pad(n: int, width: int) -> str:
    """Return the non-negative int n as a string with zeros in front, so that it has at least width characters."""
    return str(n).zfill(width)


@task(cases=[("ab", 4), ("abc", 2), ("", 3), ("x", 1)], draw=args(text(high=5), integer(0, 8)))
def pad_right(s: str, width: int) -> str:
    """Return s with spaces behind it, so that it has width characters; s as it is if it has width or more."""
    return s.ljust(width)


@task(cases=[("Hello", "hELLO"), ("a", "b"), ("", ""), ("Ab", "abc")], draw=args(text("aA", 1, 2), text("aA", 1, 2)))
def same_ignoring_case(a: str, b: str) -> bool:
    """Return True if a and b are equal when upper and lower case count as the same, otherwise False."""
    return a.lower() == b.lower()


@task(cases=[("abc", "xyz"), ("a", "bb"), ("", ""), ("x", "")], draw=args(SHORT, SHORT))
def same_length(a: str, b: str) -> bool:
    """Return True if a and b have the same number of characters, otherwise False."""
    return len(a) == len(b)


@task(cases=[("hello", 3), ("abc", 3), ("", 0), ("x", 0)], draw=args(text(), integer(0, 8)))
def is_longer_than(s: str, n: int) -> bool:
    """Return True if s has more than n characters, otherwise False."""
    return len(s) > n


@task(cases=[("abc", "de"), ("", ""), ("x", ""), ("hello", "you")], draw=args(text(), text()))
def total_length(a: str, b: str) -> int:
    """Return the number of characters of a and b together."""
    return len(a) + len(b)


@task(
    cases=[("abc", "axe"), ("abc", "bcd"), ("x", "x"), ("hello", "you")], draw=args(text("ab", 1, 4), text("ab", 1, 4))
)
def same_first_char(a: str, b: str) -> bool:
    """Return True if the first characters of the non-empty strings a and b are equal, otherwise False."""
    return a[0] == b[0]


@task(cases=[("abca",), ("abc",), ("x",), ("hello",)], draw=args(text("ab", 1, 5)))
def starts_as_it_ends(s: str) -> bool:
    """Return True if the first and the last character of the non-empty string s are equal, otherwise False."""
    return s[0] == s[-1]


@task(cases=[("abc", "cba"), ("abc", "abc"), ("", ""), ("x", "xy")], draw=args(text("ab", 1, 2), text("ab", 1, 2)))
def is_reverse_of(a: str, b: str) -> bool:
    """Return True if a is equal to b read backwards, otherwise False."""
    return a == b[::-1]


@task(cases=[("apple", "bee"), ("bee", "apple"), ("a", "a"), ("car", "cat")], draw=args(WORD, WORD))
def comes_before(a: str, b: str) -> bool:
    """Return True if a comes before b in the alphabet, otherwise False; equal words do not come before one another.
    Both have only lower case letters."""
    return a < b


@task(cases=[("a",), ("b",), ("u",), ("z",)], draw=args(text("aeioubcdfg", 1, 1)))
def is_vowel(c: str) -> bool:
    """Return True if the lower case letter c is one of a, e, i, o and u, otherwise False."""
    return c in "aeiou"


@task(cases=[("hello", "l"), ("hello", "x"), ("", "a"), ("banana", "nan")], draw=args(text("ab"), text("ab", 1, 2)))
def find_text(s: str, part: str) -> int:
    """Return the index, counted from 0, at which part first occurs in s, or -1 if it does not occur."""
    return s.find(part)


@task(cases=[("unhappy", "un"), ("happy", "un"), ("", "a"), ("aab", "a")], draw=args(SHORT, text("ab", 1, 2)))
def remove_prefix(s: str, prefix: str) -> str:
    """Return s without prefix if s starts with it, otherwise s as it is. prefix is taken away once at most."""
    return s.removeprefix(prefix)


@task(cases=[("secret",), ("",), ("x",), ("a b",)], draw=args(text()))
def hide_text(s: str) -> str:
    """Return a string of as many "*" as s has characters."""
    return "*" * len(s)


@task(cases=[("hello you",), ("one",), ("a b c",), ("the end",)], draw=args(sentence(1)))
def first_word(s: str) -> str:
    """Return the first word of s, which has one word or more, separated by single spaces."""
    return s.split()[0]


@task(cases=[("a",), ("A",), ("0",), (" ",)], draw=args(text("abcXYZ019", 1, 1)))
def char_code(c: str) -> int:
    """Return the Unicode number of the character c, such as 97 for "a"."""
    return ord(c)
