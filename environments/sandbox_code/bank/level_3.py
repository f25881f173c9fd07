"""Level 3: a loop that keeps state."""

from envhub.environments.sandbox_code.bank import Level, args, integer, many, sentence, text

task = Level(3)

SMALL = integer(-9, 9)
INTS = many(SMALL)
SOME_INTS = many(SMALL, low=1)
NATURAL = integer(0, 9999)


@task(cases=[(5,), (0,), (1,), (10,)], draw=args(integer(0, 15)))
def factorial(n: int) -> int:
    """Return the product of the numbers 1, 2, ..., n; the result for n = 0 is 1."""
    result = 1
    for i in range(2, n + 1):
        result *= i
    return result


@task(cases=[(7,), (0,), (1,), (2,), (20,)], draw=args(integer(0, 40)))
def fibonacci(n: int) -> int:
    """Return the n-th Fibonacci number, where number 0 is 0, number 1 is 1, and each later one is the sum of the two
    before it."""
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


@task(cases=[([1, 2, 3],), ([],), ([5, -5, 2],), ([4],)], draw=args(INTS))
def running_sum(numbers: list[int]) -> list[int]:
    """Return a list whose element at each index is the sum of the numbers up to and including that index."""
    total = 0
    sums = []
    for n in numbers:
        total += n
        sums.append(total)
    return sums


@task(cases=[([1, 3, 2, 5],), ([],), ([-2, -3],), ([4],)], draw=args(INTS))
def running_max(numbers: list[int]) -> list[int]:
    """Return a list whose element at each index is the largest of the numbers up to and including that index."""
    result: list[int] = []
    for n in numbers:
        result.append(n if not result else max(n, result[-1]))
    return result


@task(cases=[(372,), (0,), (9,), (1001,)], draw=args(NATURAL))
def digit_sum(n: int) -> int:
    """Return the sum of the decimal digits of the non-negative number n."""
    total = 0
    while n:
        total += n % 10
        n //= 10
    return total


@task(cases=[(372,), (0,), (120,), (8,)], draw=args(NATURAL))
def reverse_digits(n: int) -> int:
    """Return the number whose decimal digits are those of the non-negative number n in reverse order, without leading
    zeros; reverse_digits(120) is 21."""
    result = 0
    while n:
        result = result * 10 + n % 10
        n //= 10
    return result


@task(cases=[(["a", "tree", "owl"],), (["x"],), (["ab", "cd"],), (["", "z"],)], draw=args(many(text(high=5), 1, 6)))
def longest_word(words: list[str]) -> str:
    """Return the longest string of the non-empty list words; of several equally long ones, the first."""
    best = words[0]
    for word in words:
        if len(word) > len(best):
            best = word
    return best


@task(cases=[([1, 2, 2],), ([],), ([3, 1],), ([5],), ([1, 3, 2],)], draw=args(many(integer(0, 4), 0, 4)))
def is_ascending(numbers: list[int]) -> bool:
    """Return True if no number in the list is less than the one before it, otherwise False. The result is True for
    lists of fewer than 2 numbers."""
    return all(numbers[i] >= numbers[i - 1] for i in range(1, len(numbers)))


@task(cases=[([3, 1, 3, 2, 1],), ([],), ([5, 5],), ([1, 2],)], draw=args(many(integer(0, 5))))
def remove_duplicates(numbers: list[int]) -> list[int]:
    """Return a new list with each number only at its first occurrence; the order is kept."""
    result: list[int] = []
    for n in numbers:
        if n not in result:
            result.append(n)
    return result


@task(cases=[([1, 2, 3, 4],), ([],), ([5],), ([-1, -1],)], draw=args(INTS))
def alternating_sum(numbers: list[int]) -> int:
    """Return the first number minus the second plus the third minus the fourth and so on; 0 for an empty list."""
    total = 0
    for i, n in enumerate(numbers):
        total += n if i % 2 == 0 else -n
    return total


@task(cases=[(6,), (1,), (2,), (7,)], draw=args(integer(1, 200)))
def collatz_steps(n: int) -> int:
    """Count the steps from the positive number n to 1, where a step turns an even n into n // 2 and an odd n into
    3 * n + 1. The result for n = 1 is 0."""
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@task(cases=[("aabbbc",), ("",), ("abc",), ("zzzz",)], draw=args(text("ab", 0, 10)))
def longest_run(s: str) -> int:
    """Return the length of the longest run of equal neighbouring characters in s; 0 for the empty string."""
    best = run = 0
    for i, c in enumerate(s):
        run = run + 1 if i and s[i - 1] == c else 1
        best = max(best, run)
    return best


@task(cases=[("aabbba",), ("",), ("abc",), ("zz",)], draw=args(text("ab", 0, 10)))
def squeeze(s: str) -> str:
    """Return s with each run of equal neighbouring characters shortened to one character; squeeze("aabbba") is
    "aba"."""
    result = ""
    for c in s:
        if not result.endswith(c):
            result += c
    return result


@task(cases=[("abcbd",), ("abc",), ("",), ("abba",)], draw=args(text("abcde", 0, 6)))
def first_repeated(s: str) -> str | None:
    """Return the first character of s, read from the left, that has occurred before in s; None if all characters
    differ. first_repeated("abba") is "b"."""
    seen = ""
    for c in s:
        if c in seen:
            return c
        seen += c
    return None


@task(cases=[("1011",), ("0",), ("1",), ("00100",)], draw=args(text("01", 1, 10)))
def binary_to_number(s: str) -> int:
    """Return the non-negative int that the non-empty string s of the characters 0 and 1 spells in base 2."""
    result = 0
    for c in s:
        result = result * 2 + (c == "1")
    return result


@task(cases=[(11,), (0,), (1,), (64,)], draw=args(integer(0, 1000)))
def number_to_binary(n: int) -> str:
    """Return the non-negative number n in base 2, as a string without prefix and leading zeros; "0" for n = 0."""
    digits = "" if n else "0"
    while n:
        digits = str(n % 2) + digits
        n //= 2
    return digits


@task(cases=[([2, 3, 4],), ([],), ([5, 0],), ([-2],)], draw=args(INTS))
def product(numbers: list[int]) -> int:
    """Return the product of the numbers in the list; 1 for an empty list."""
    result = 1
    for n in numbers:
        result *= n
    return result


@task(cases=[(987,), (0,), (5,), (199,)], draw=args(NATURAL))
def digital_root(n: int) -> int:
    """Add up the decimal digits of the non-negative number n, then those of the sum, and so on until one digit is
    left, and return it."""
    while n > 9:
        n = sum(int(digit) for digit in str(n))
    return n


@task(cases=[([1, 5, 2],), ([3],), ([],), ([-4, 4],), ([2, 2],)], draw=args(INTS))
def largest_jump(numbers: list[int]) -> int:
    """Return the largest absolute difference between neighbouring numbers of the list; 0 if it has fewer than 2."""
    best = 0
    for i in range(1, len(numbers)):
        best = max(best, abs(numbers[i] - numbers[i - 1]))
    return best


@task(cases=[([1, 5, 5, 2],), ([3],), ([-2, -1],), ([9, 1],)], draw=args(SOME_INTS))
def index_of_max(numbers: list[int]) -> int:
    """Return the index, counted from 0, of the largest number of the non-empty list; if it occurs more than once, the
    first of its indices."""
    best = 0
    for i, n in enumerate(numbers):
        if n > numbers[best]:
            best = i
    return best


@task(cases=[("abc", "xy"), ("", ""), ("a", "xyz"), ("", "q")], draw=args(text(high=5), text(high=5)))
def interleave(a: str, b: str) -> str:
    """Return the characters of a and b in turn, beginning with a; when one string is used up, the rest of the other
    follows. interleave("abc", "xy") is "axbyc"."""
    result = ""
    for i in range(max(len(a), len(b))):
        result += a[i : i + 1] + b[i : i + 1]
    return result


@task(cases=[(8,), (6,), (1,), (0,), (1024,)], draw=lambda rng: (2 ** rng.randint(0, 10) + rng.randint(-1, 1),))
def is_power_of_two(n: int) -> bool:
    """Return True if the non-negative number n is 1, 2, 4, 8 or another power of two, otherwise False."""
    value = 1
    while value < n:
        value *= 2
    return value == n


@task(cases=[([0, 1, 3],), ([],), ([1, 2],), ([2, 0, 1, 0],)], draw=args(many(integer(0, 5))))
def smallest_missing(numbers: list[int]) -> int:
    """Return the smallest non-negative int that is not in the list."""
    n = 0
    while n in numbers:
        n += 1
    return n


@task(cases=[([5, -8, 3],), ([],), ([-1],), ([4, -1, -1],)], draw=args(INTS))
def floored_balance(changes: list[int]) -> int:
    """Start at 0 and add the changes one after the other; whenever the balance falls below 0, set it to 0. Return the
    balance at the end."""
    balance = 0
    for change in changes:
        balance = max(0, balance + change)
    return balance


@task(cases=[([1, 2, 3, 1, 2],), ([],), ([3, 2, 1],), ([1, 1],)], draw=args(many(integer(0, 6), 0, 10)))
def longest_climb(numbers: list[int]) -> int:
    """Return the length of the longest stretch of neighbouring numbers in which each is greater than the one before; 0
    for an empty list, and at least 1 otherwise."""
    best = run = 0
    for i, n in enumerate(numbers):
        run = run + 1 if i and n > numbers[i - 1] else 1
        best = max(best, run)
    return best


@task(cases=[([4, 2, -1, 7],), ([],), ([-3],), ([1, 0, 5],)], draw=args(many(integer(-3, 9))))
def sum_until_negative(numbers: list[int]) -> int:
    """Return the sum of the numbers before the first negative one; of all numbers if none is negative."""
    total = 0
    for n in numbers:
        if n < 0:
            break
        total += n
    return total


@task(cases=[([1, 2, 3, 4, 5], 2), ([], 3), ([1], 4), ([1, 2], 1)], draw=args(INTS, integer(1, 4)))
def chunks(items: list[int], size: int) -> list[list[int]]:
    """Split the list into lists of size elements, in order, and return them in a list; the last one may be shorter.
    size is positive; the result for an empty list is an empty list."""
    result = []
    for start in range(0, len(items), size):
        result.append(items[start : start + size])
    return result


@task(cases=[([[1, 2], [3]],), ([],), ([[], [4]],), ([[5, 6, 7]],)], draw=args(many(many(SMALL, 0, 3), 0, 4)))
def flatten(lists: list[list[int]]) -> list[int]:
    """Return one list with the elements of all the lists, in order."""
    result = []
    for items in lists:
        for item in items:
            result.append(item)
    return result


@task(cases=[("flower", "flow"), ("", "a"), ("dog", "cat"), ("abc", "abd")], draw=args(text("aaab"), text("aaab")))
def common_prefix(a: str, b: str) -> str:
    """Return the longest string with which both a and b start."""
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return a[:length]


@task(cases=[("the cat sat",), ("",), ("a",), ("on and on",)], draw=args(sentence()))
def reverse_words(s: str) -> str:
    """Return the words of s in reverse order, separated by single spaces, as they are in s; the letters in each word
    keep their order."""
    result: list[str] = []
    for word in s.split():
        result.insert(0, word)
    return " ".join(result)


@task(cases=[([1, 2, 3, 4], 1), ([], 3), ([1, 2], 5), ([7, 8, 9], 0)], draw=args(INTS, integer(0, 12)))
def rotate_left(items: list[int], n: int) -> list[int]:
    """Move the first element of the list to its end, n times, and return the resulting new list; n is not negative
    and may be greater than the length. The result for an empty list is an empty list."""
    result = list(items)
    for _ in range(n):
        if result:
            result.append(result.pop(0))
    return result
