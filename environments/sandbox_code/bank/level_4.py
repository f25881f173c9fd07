"""Level 4: several conditions, dictionaries, nested loops."""

from envhub.environments.sandbox_code.bank import Level, args, choice, integer, many, mapping, matrix, sentence, text

task = Level(4)

SMALL = integer(-9, 9)
KEY = text("abc", 1, 1)
COUNTS = mapping(KEY, integer(0, 9), 0, 4)
FEW_WORDS = sentence(0, 8, choice("cat", "dog", "owl", "a", "be"))


@task(cases=[("banana",), ("",), ("a b a",), ("Aa",)], draw=args(text("abc ", 0, 10)))
def letter_counts(s: str) -> dict[str, int]:
    """Return a dict from each character of s other than the space to the number of times it occurs. Upper and lower
    case are different characters."""
    counts: dict[str, int] = {}
    for c in s:
        if c != " ":
            counts[c] = counts.get(c, 0) + 1
    return counts


@task(cases=[("a dog a cat",), ("",), ("cat dog",), ("x y y x z",)], draw=args(FEW_WORDS))
def most_common_word(s: str) -> str | None:
    """Return the word that occurs most often in s; of several such words, the one that occurs first in s. Words are
    separated by single spaces. Return None if s is empty."""
    words = s.split()
    best = None
    for word in words:
        if best is None or words.count(word) > words.count(best):
            best = word
    return best


@task(cases=[(["a", "bc", "d"],), ([],), (["abc"],), (["xy", "", "zw"],)], draw=args(many(text(high=4), 0, 6)))
def group_by_length(words: list[str]) -> dict[str, list[str]]:
    """Return a dict from each occurring word length, as a string such as "3", to the list of the words of that length
    in their order."""
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(str(len(word)), []).append(word)
    return groups


@task(
    cases=[({"a": "x", "b": "y", "c": "x"},), ({},), ({"k": "v"},), ({"p": "p", "q": "p"},)],
    draw=args(mapping(text("abcdef", 1, 1), text("xy", 1, 1))),
)
def invert_mapping(mapping: dict[str, str]) -> dict[str, list[str]]:
    """Return a dict from each value of the given dict to the list of the keys that have it, sorted in ascending
    order."""
    result: dict[str, list[str]] = {}
    for key in sorted(mapping):
        result.setdefault(mapping[key], []).append(key)
    return result


@task(
    cases=[({"a": 1, "b": 2}, {"b": 3, "c": 4}), ({}, {}), ({"x": 5}, {}), ({"q": 0}, {"q": 0})],
    draw=args(COUNTS, COUNTS),
)
def merge_counts(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    """Return a dict with the keys of a and of b; the value of a key is the sum of its values in a and b, where a
    missing one counts as 0."""
    result = dict(a)
    for key, value in b.items():
        result[key] = result.get(key, 0) + value
    return result


@task(
    cases=[("Dusty ", "study"), ("abc", "abd"), ("", ""), ("aab", "abb")],
    draw=args(text("aA ", 0, 4), text("aab ", 0, 3)),
)
def are_anagrams(a: str, b: str) -> bool:
    """Return True if a and b have the same letters, each equally often, otherwise False. Upper and lower case count as
    the same letter, and spaces are ignored."""
    return sorted(a.lower().replace(" ", "")) == sorted(b.lower().replace(" ", ""))


@task(cases=[([[1, 2, 3], [4, 5, 6]],), ([[7]],), ([[1], [2]],), ([[1, 2]],)], draw=args(matrix(SMALL)))
def transpose(matrix: list[list[int]]) -> list[list[int]]:
    """Return the transposed matrix: its row i is column i of the given one. The matrix is a list of rows of equal
    length, with at least one row and one column."""
    result = []
    for column in range(len(matrix[0])):
        result.append([row[column] for row in matrix])
    return result


@task(
    cases=[("Hello, you", 3), ("xyz", 3), ("", 5), ("abc", -1), ("Zz", 27)],
    draw=args(text("abcxyzABC ,"), integer(-30, 30)),
)
def caesar_cipher(s: str, shift: int) -> str:
    """Move each letter a to z and A to Z of s forward by shift places in the alphabet, from z on to a and from Z on to
    A; a negative shift moves backward. Other characters stay. Return the result."""
    result = ""
    for c in s:
        if "a" <= c <= "z":
            c = chr((ord(c) - ord("a") + shift) % 26 + ord("a"))
        elif "A" <= c <= "Z":
            c = chr((ord(c) - ord("A") + shift) % 26 + ord("A"))
        result += c
    return result


@task(cases=[(5,), (0,), (1,), (15,)], draw=args(integer(0, 40)))
def fizz_buzz(n: int) -> list[str]:
    """Return a list with one string for each of the numbers 1, 2, ..., n: "FizzBuzz" if it is divisible by 3 and by 5,
    "Fizz" if only by 3, "Buzz" if only by 5, and otherwise the number itself. The list is empty for n = 0."""
    result = []
    for i in range(1, n + 1):
        if i % 15 == 0:
            result.append("FizzBuzz")
        elif i % 3 == 0:
            result.append("Fizz")
        elif i % 5 == 0:
            result.append("Buzz")
        else:
            result.append(str(i))
    return result


@task(
    cases=[([1, 2, 3, 4], 5), ([], 0), ([2, 2, 2], 4), ([5], 5), ([0, 0], 1)],
    draw=args(many(integer(-3, 3)), integer(-3, 3)),
)
def count_pairs_with_sum(numbers: list[int], total: int) -> int:
    """Return how many pairs of indices i < j there are with numbers[i] + numbers[j] equal to total."""
    count = 0
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            if numbers[i] + numbers[j] == total:
                count += 1
    return count


@task(
    cases=[(["XXX", "OO.", "..."],), (["XOX", "OXO", "OXO"],), (["O.X", "XOX", "..O"],), (["...", "...", "..."],)],
    draw=args(many(text("XXO.", 3, 3), 3, 3)),
)
def tic_tac_toe_winner(board: list[str]) -> str:
    """The board is 3 strings of 3 characters each: "X", "O" or "." for an empty square. Return "X" if there are three X
    in a row, a column or a diagonal, otherwise "O" if there are three O in one, otherwise "."."""
    lines = list(board)
    for i in range(3):
        lines.append(board[0][i] + board[1][i] + board[2][i])
    lines.append(board[0][0] + board[1][1] + board[2][2])
    lines.append(board[0][2] + board[1][1] + board[2][0])
    for player in "XO":
        if player * 3 in lines:
            return player
    return "."


@task(
    cases=[("a=1;b=2",), ("",), ("x=5;y;x=7",), ("k=;=v",)],
    draw=lambda rng: (
        ";".join(rng.choice("abc=") + rng.choice(["=", "=1", "", "=2=3"]) for _ in range(rng.randint(0, 5))),
    ),
)
def parse_pairs(s: str) -> dict[str, str]:
    """Split s at each ";" into parts, and each part at its first "=" into a key and a value. Return a dict from keys to
    values; a later value replaces an earlier one of the same key. Parts without "=" and parts with an empty key are
    ignored."""
    result = {}
    for part in s.split(";"):
        key, separator, value = part.partition("=")
        if separator and key:
            result[key] = value
    return result


@task(cases=[(3, 2), (1, 1), (2, 4), (0, 5)], draw=args(integer(0, 5), integer(1, 5)))
def multiplication_table(rows: int, columns: int) -> list[list[int]]:
    """Return a list of rows, each a list of columns numbers: the number at row i and column j, both counted from 1, is
    i times j. The list is empty if rows is 0."""
    table = []
    for i in range(1, rows + 1):
        table.append([i * j for j in range(1, columns + 1)])
    return table


@task(cases=[(3, 4, 5), (2, 2, 2), (1, 2, 3), (5, 3, 5), (9, 1, 1)], draw=args(*[integer(1, 4)] * 3))
def triangle_kind(a: int, b: int, c: int) -> str:
    """Return what triangle the positive side lengths a, b and c form: "none" if the largest is not less than the sum of
    the other two, otherwise "equilateral" if all are equal, "isosceles" if exactly two are equal, and "scalene" if all
    differ."""
    small, middle, large = sorted([a, b, c])
    if large >= small + middle:
        return "none"
    if small == large:
        return "equilateral"
    if small == middle or middle == large:
        return "isosceles"
    return "scalene"


@task(cases=[([1, 2, 2, 3, 3],), ([],), ([5],), ([4, 1],)], draw=args(many(integer(0, 4))))
def modes(numbers: list[int]) -> list[int]:
    """Return the numbers that occur most often in the list, each once, in ascending order; an empty list for an empty
    list."""
    counts: dict[int, int] = {}
    for n in numbers:
        counts[n] = counts.get(n, 0) + 1
    most = max(counts.values(), default=0)
    return sorted(n for n in counts if counts[n] == most)


@task(
    cases=[([1, 2, 2, 3], [2, 2, 4, 1]), ([], [1]), ([5, 5, 5], [5]), ([1], [2])],
    draw=args(many(integer(0, 4)), many(integer(0, 4))),
)
def common_elements(a: list[int], b: list[int]) -> list[int]:
    """Return the numbers that are in both lists, in ascending order; each occurs as often as in the list in which it
    occurs less often."""
    result = []
    rest = list(b)
    for n in sorted(a):
        if n in rest:
            rest.remove(n)
            result.append(n)
    return result


@task(
    cases=[("09:45", 30), ("23:50", 15), ("00:00", 0), ("12:00", 1500), ("00:10", -20)],
    draw=lambda rng: (f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}", rng.randint(-2000, 2000)),
)
def add_minutes(time: str, minutes: int) -> str:
    """Return the time of day that is the given number of minutes after time, or before it if minutes is negative. Times
    are strings from "00:00" to "23:59", with two digits each; midnight starts the day anew."""
    total = (int(time[:2]) * 60 + int(time[3:]) + minutes) % (24 * 60)
    return f"{total // 60:02d}:{total % 60:02d}"


@task(cases=[("hello apple",), ("",), ("shh",), ("string a quiz",)], draw=args(sentence(word=text("aeistr", 1, 5))))
def pig_latin(s: str) -> str:
    """Translate each word of s, which has lower-case words separated by single spaces: move the consonants before the
    first vowel (a, e, i, o, u) to the end of the word and add "ay"; add only "ay" if the word has no vowel or starts
    with one. Return the words separated by single spaces."""
    result = []
    for word in s.split():
        start = 0
        while start < len(word) and word[start] not in "aeiou":
            start += 1
        result.append(word[start:] + word[:start] + "ay")
    return " ".join(result)


@task(
    cases=[({"a": 1, "b": 2}, {"b": 3, "c": 4}), ({}, {}), ({"x": 5}, {"x": 5}), ({"p": 0}, {})],
    draw=args(mapping(KEY, integer(0, 2)), mapping(KEY, integer(0, 2))),
)
def compare_mappings(old: dict[str, int], new: dict[str, int]) -> dict[str, list[str]]:
    """Return a dict with three lists of keys, each sorted in ascending order: "added" has the keys only in new,
    "removed" those only in old, and "changed" those in both with different values."""
    return {
        "added": sorted(key for key in new if key not in old),
        "removed": sorted(key for key in old if key not in new),
        "changed": sorted(key for key in old if key in new and old[key] != new[key]),
    }


@task(
    cases=[(["#..", ".##", "..."], 1, 0), (["."], 0, 0), (["##", "##"], 0, 0), (["#"], 0, 0)],
    draw=lambda rng: (["".join(rng.choices("#.", k=3)) for _ in range(3)], rng.randint(0, 2), rng.randint(0, 2)),
)
def count_neighbours(grid: list[str], row: int, column: int) -> int:
    """Return how many of the up to 8 squares next to grid[row][column], diagonals included, are "#". The square itself
    does not count. grid is a list of strings of equal length, and rows and columns count from 0."""
    count = 0
    for i in range(max(0, row - 1), min(len(grid), row + 2)):
        for j in range(max(0, column - 1), min(len(grid[0]), column + 2)):
            if (i, j) != (row, column) and grid[i][j] == "#":
                count += 1
    return count


@task(
    cases=[({"pen": 2}, ["pen", "+ink", "pen"]), ({}, []), ({}, ["cup"]), ({"a": 1}, ["+a", "a", "a", "a"])],
    draw=args(COUNTS, many(choice("a", "b", "c", "+a", "+b"), 0, 8)),
)
def update_stock(stock: dict[str, int], events: list[str]) -> dict[str, int]:
    """Apply the events to the stock in order and return the new stock: "+NAME" adds one of NAME, any other event is the
    name of an item of which one is taken, which changes nothing if there is none. Items of which none are left, also
    those with count 0 in the given stock, are not in the result."""
    result = dict(stock)
    for event in events:
        if event.startswith("+"):
            result[event[1:]] = result.get(event[1:], 0) + 1
        elif result.get(event, 0) > 0:
            result[event] -= 1
    return {name: count for name, count in result.items() if count > 0}


@task(
    cases=[("RPS", "SRP"), ("", ""), ("RRP", "SSR"), ("SP", "RS")],
    draw=lambda rng: tuple("".join(rng.choices("RPS", k=size)) for size in [rng.randint(0, 5)] * 2),
)
def rock_paper_scissors(a: str, b: str) -> str:
    """a and b are the moves of two players, one character a round: "R", "P" or "S". R beats S, S beats P, and P beats
    R; equal moves win nothing. Return "a" or "b" for the player who wins more rounds, or "draw". The strings have the
    same length."""
    score = 0
    for x, y in zip(a, b, strict=True):
        if x + y in ["RS", "SP", "PR"]:
            score += 1
        elif x != y:
            score -= 1
    return "a" if score > 0 else "b" if score < 0 else "draw"
