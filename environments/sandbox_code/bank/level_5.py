"""Level 5: small algorithms."""

from random import Random

from envhub.environments.sandbox_code.bank import Level, args, choice, either, integer, many, matrix, sentence, text

task = Level(5)

SMALL = integer(-9, 9)
INTS = many(SMALL)
VALID_OR_NOT = either(text("0123456789", 1, 8), choice("42", "182", "7997", "26", "59", "34", "1230", "0018"))


def factors(rng: Random) -> tuple[list[list[int]], list[list[int]]]:
    """Draw two matrices that can be multiplied."""
    rows, inner, columns = (rng.randint(1, 3) for _ in range(3))
    left = [[rng.randint(-5, 5) for _ in range(inner)] for _ in range(rows)]
    return left, [[rng.randint(-5, 5) for _ in range(columns)] for _ in range(inner)]


def postfix(rng: Random, depth: int = 3) -> list[str]:
    """Draw the tokens of a postfix expression nested at most `depth` deep."""
    if depth == 0 or rng.random() < 0.3:
        return [str(rng.randint(-9, 9))]
    return [*postfix(rng, depth - 1), *postfix(rng, depth - 1), rng.choice("+-*")]


@task(cases=[(12, 18), (7, 5), (0, 4), (9, 0), (0, 0)], draw=args(integer(0, 120), integer(0, 120)))
def greatest_common_divisor(a: int, b: int) -> int:
    """Return the greatest int that divides both a and b, which are not negative. If one of them is 0, return the other
    one; the result for 0 and 0 is 0."""
    while b:
        a, b = b, a % b
    return a


@task(cases=[(4, 6), (7, 7), (1, 9), (8, 3)], draw=args(integer(1, 60), integer(1, 60)))
def least_common_multiple(a: int, b: int) -> int:
    """Return the smallest positive int that both a and b divide; a and b are positive."""
    multiple = a
    while multiple % b:
        multiple += a
    return multiple


@task(cases=[(10,), (0,), (1,), (2,), (30,)], draw=args(integer(0, 150)))
def primes_up_to(n: int) -> list[int]:
    """Return the prime numbers that are at most n, in ascending order. n is not negative."""
    primes: list[int] = []
    for candidate in range(2, n + 1):
        if all(candidate % prime for prime in primes):
            primes.append(candidate)
    return primes


@task(cases=[(12,), (1,), (13,), (360,)], draw=args(integer(1, 2000)))
def prime_factors(n: int) -> list[int]:
    """Return the prime numbers whose product is the positive number n, in ascending order, each as often as it divides
    n; prime_factors(12) is [2, 2, 3]. The result for 1 is an empty list."""
    factors = []
    divisor = 2
    while n > 1:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return factors


@task(
    cases=[([1, 3, 5, 7], 5), ([1, 3], 2), ([], 4), ([2, 2, 2], 2), ([1], 9)],
    draw=lambda rng: (sorted(rng.choices(range(10), k=rng.randint(0, 12))), rng.randint(-1, 10)),
)
def insertion_index(numbers: list[int], n: int) -> int:
    """Return how many of the numbers are less than n. The list is in ascending order and may hold equal numbers; find
    the answer by bisection."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < n:
            low = middle + 1
        else:
            high = middle
    return low


@task(
    cases=[
        ([[1, 2], [3, 4]], [[5, 6], [7, 8]]),
        ([[2]], [[-3]]),
        ([[1, 0, 2]], [[1], [2], [3]]),
        ([[1], [2]], [[3, 4]]),
    ],
    draw=factors,
)
def matrix_product(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
    """Return the matrix product of a and b. Matrices are lists of rows; a has as many columns as b has rows, and no
    dimension is 0."""
    columns = list(zip(*b, strict=True))
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a]


@task(cases=[(14,), (1,), (1994,), (3999,), (40,)], draw=args(integer(1, 3999)))
def to_roman(n: int) -> str:
    """Return n, from 1 to 3999, as a Roman numeral in upper case, with the subtractive forms IV, IX, XL, XC, CD and
    CM."""
    values = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]
    symbols = ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"]
    result = ""
    for value, symbol in zip(values, symbols, strict=True):
        result += symbol * (n // value)
        n %= value
    return result


@task(
    cases=[("XIV",), ("I",), ("MCMXCIV",), ("MMMCMXCIX",)],
    draw=lambda rng: (
        "M" * rng.randint(0, 3)
        + rng.choice(["CM", "CD", "DC"])
        + rng.choice(["", "XC", "XL", "LX"])
        + rng.choice(["", "IX", "IV", "VI", "III"]),
    ),
)
def from_roman(s: str) -> int:
    """Return the int that the valid upper-case Roman numeral s stands for, from 1 to 3999."""
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    total = 0
    for i, c in enumerate(s):
        if i + 1 < len(s) and values[c] < values[s[i + 1]]:
            total -= values[c]
        else:
            total += values[c]
    return total


@task(cases=[("aaabcc",), ("",), ("x",), ("z" * 12,)], draw=args(text("ab", 0, 12)))
def run_length_encode(s: str) -> str:
    """Replace each run of equal neighbouring characters of s by its length followed by the character, and return the
    result; run_length_encode("aaabcc") is "3a1b2c". s has no digits."""
    result = ""
    start = 0
    for i in range(1, len(s) + 1):
        if i == len(s) or s[i] != s[start]:
            result += f"{i - start}{s[start]}"
            start = i
    return result


@task(
    cases=[("3a1b2c",), ("",), ("12z",), ("1x10y",)],
    draw=lambda rng: ("".join(f"{rng.randint(1, 12)}{rng.choice('abc')}" for _ in range(rng.randint(0, 4))),),
)
def run_length_decode(s: str) -> str:
    """s is a sequence of a positive decimal number, which may have several digits, followed by a letter. Return the
    string with each letter repeated as often as its number says; run_length_decode("3a1b") is "aaab"."""
    result = number = ""
    for c in s:
        if c.isdigit():
            number += c
        else:
            result += c * int(number)
            number = ""
    return result


@task(
    cases=[("([]{})",), ("",), ("(]",), ("((",), (")(",), ("a(b)c",)],
    draw=args(choice("()", "[()]", "([)]", "{x}", "((", "a", "())", "{[]}()", "]", "x[(y)]z")),
)
def is_balanced(s: str) -> bool:
    """Return True if each of the brackets (, [ and { in s is closed by the matching ), ] or } in the right order, and
    no closing bracket is left over; otherwise False. Other characters are ignored; the empty string is balanced."""
    closing = {")": "(", "]": "[", "}": "{"}
    stack: list[str] = []
    for c in s:
        if c in "([{":
            stack.append(c)
        elif c in closing and (not stack or stack.pop() != closing[c]):
            return False
    return not stack


@task(
    cases=[([1, 4, 6], [2, 4]), ([], []), ([], [3]), ([5], [1, 2])],
    draw=lambda rng: tuple(sorted(rng.choices(range(-9, 10), k=rng.randint(0, 6))) for _ in range(2)),
)
def merge_sorted(a: list[int], b: list[int]) -> list[int]:
    """a and b are lists in ascending order. Return a list with all elements of both, in ascending order; elements that
    occur several times are all kept."""
    result = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] <= b[j]:
            result.append(a[i])
            i += 1
        else:
            result.append(b[j])
            j += 1
    return result + a[i:] + b[j:]


@task(cases=[([[1, 2, 3], [4, 5, 6], [7, 8, 9]],), ([[5]],), ([[1, 2, 3]],), ([[1], [2]],)], draw=args(matrix(SMALL)))
def spiral_order(matrix: list[list[int]]) -> list[int]:
    """Return the elements of the matrix, a non-empty list of non-empty rows of equal length, in the order of a clockwise
    spiral that starts to the right at the top left corner and goes inwards."""
    result = []
    rest = [list(row) for row in matrix]
    while rest:
        result += rest.pop(0)
        rest = [[row[i] for row in rest] for i in reversed(range(len(rest[0])))] if rest else []
    return result


@task(cases=[(4,), (0,), (1,), (10,)], draw=args(integer(0, 20)))
def pascal_row(n: int) -> list[int]:
    """Return row n of Pascal's triangle, where row 0 is [1] and each inner number of a row is the sum of the two above
    it; pascal_row(4) is [1, 4, 6, 4, 1]."""
    row = [1]
    for _ in range(n):
        row = [1, *[row[i] + row[i + 1] for i in range(len(row) - 1)], 1]
    return row


@task(cases=[(255, 16), (0, 2), (35, 36), (-10, 3), (8, 8)], draw=args(integer(-999, 999), integer(2, 36)))
def to_base(n: int, base: int) -> str:
    """Return the int n in the given base, from 2 to 36, as a string without leading zeros. The digits are 0 to 9 and
    then the lower-case letters a to z; a negative number has a leading "-". The result for n = 0 is "0"."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    rest = abs(n)
    result = "" if rest else "0"
    while rest:
        result = digits[rest % base] + result
        rest //= base
    return "-" + result if n < 0 else result


@task(cases=[([1, 2, 3],), ([3, 2, 1],), ([],), ([1, 1, 5],), ([2, 3, 1],)], draw=args(many(integer(0, 4), 0, 6)))
def next_permutation(numbers: list[int]) -> list[int]:
    """Return the next greater arrangement of the numbers in lexicographic order; the smallest one, in ascending order,
    if there is no greater one. next_permutation([2, 3, 1]) is [3, 1, 2]."""
    result = list(numbers)
    i = len(result) - 2
    while i >= 0 and result[i] >= result[i + 1]:
        i -= 1
    if i >= 0:
        j = len(result) - 1
        while result[j] <= result[i]:
            j -= 1
        result[i], result[j] = result[j], result[i]
    return result[: i + 1] + result[i + 1 :][::-1]


@task(cases=[([1, -2, 3, 4, -1],), ([-3],), ([-5, -2],), ([2, -1, 2],)], draw=args(many(SMALL, 1, 10)))
def largest_stretch_sum(numbers: list[int]) -> int:
    """Return the largest sum of a stretch of neighbouring numbers of the non-empty list; the stretch has at least one
    number."""
    best = current = numbers[0]
    for n in numbers[1:]:
        current = max(n, current + n)
        best = max(best, current)
    return best


@task(
    cases=[(["3", "4", "+"],), (["5"],), (["2", "3", "4", "*", "-"],), (["1", "2", "-", "-7", "*"],)],
    draw=args(postfix),
)
def evaluate_postfix(tokens: list[str]) -> int:
    """Return the value of an arithmetic expression in postfix notation. Each token is an int, such as "4" or "-7", or
    one of the operators +, - and *, which apply to the two values before them: ["5", "3", "-"] is 2. The expression is
    valid and not empty."""
    stack: list[int] = []
    for token in tokens:
        if token in ("+", "-", "*"):
            right, left = stack.pop(), stack.pop()
            stack.append(left + right if token == "+" else left - right if token == "-" else left * right)
        else:
            stack.append(int(token))
    return stack[0]


@task(cases=[("79927398713",), ("79927398710",), ("0",), ("18",), ("5",)], draw=args(VALID_OR_NOT))
def luhn_valid(number: str) -> bool:
    """Check a non-empty string of digits by Luhn's rule: going from right to left, double every second digit, beginning
    with the second from the right, and subtract 9 from a result above 9; return True if the sum of all digits is
    divisible by 10, otherwise False."""
    total = 0
    for i, digit in enumerate(reversed(number)):
        value = int(digit) * (1 + i % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


@task(cases=[(7, 3), (1, 1), (5, 1), (6, 10)], draw=args(integer(1, 20), integer(1, 9)))
def last_in_circle(n: int, k: int) -> int:
    """n people with the numbers 1 to n stand in a circle. Counting starts at person 1, and every k-th person who is
    still there leaves, until one is left; counting goes on after the one who left. Return the number of the last
    person."""
    people = list(range(1, n + 1))
    index = 0
    while len(people) > 1:
        index = (index + k - 1) % len(people)
        people.pop(index)
    return people[0]


@task(
    cases=[([".#.", ".#.", ".#."],), (["."],), (["##", "##"],), (["#.#", "...", "#.#"],)],
    draw=args(many(text("#.", 4, 4), 2, 4)),
)
def next_generation(grid: list[str]) -> list[str]:
    """Return the next generation of Conway's game of life. grid is a list of strings of equal length, "#" is a live cell
    and "." a dead one, and cells outside are dead. A live cell with 2 or 3 live cells among its 8 neighbours lives on, a
    dead one with exactly 3 comes alive, and all others are dead."""
    result = []
    for i in range(len(grid)):
        row = ""
        for j in range(len(grid[0])):
            block = "".join(line[max(0, j - 1) : j + 2] for line in grid[max(0, i - 1) : i + 2])
            alive = block.count("#") - (grid[i][j] == "#")
            row += "#" if alive == 3 or (alive == 2 and grid[i][j] == "#") else "."
        result.append(row)
    return result


@task(
    cases=[("the quick brown fox", 10), ("", 5), ("word", 2), ("a b c d", 3)],
    draw=args(sentence(), integer(1, 14)),
)
def wrap_words(s: str, width: int) -> list[str]:
    """Break s, words separated by single spaces, into lines: put as many words on each line, with single spaces between
    them, as fit into width characters; a word longer than width gets a line of its own. Return the list of lines, which
    is empty for the empty string."""
    lines: list[str] = []
    for word in s.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines
