"""Level 1, numbers and truth values: functions of one line."""

from envhub.environments.sandbox_code.bank import Level, args, choice, either, integer

task = Level(1)

INT = integer()
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


@task(cases=[(1, 2, 3), (0, 0, 0), (-5, 2, 3), (10, -20, 5)], draw=args(INT, INT, INT))
def add_three(a: int, b: int, c: int) -> int:
    """Return the sum of a, b and c."""
    return a + b + c


@task(cases=[(True, False), (True, True), (False, True), (False, False)], draw=args(BOOL, BOOL))
def both_true(a: bool, b: bool) -> bool:
    """Return True if a and b are both True, otherwise False."""
    return a and b


@task(cases=[(9, 2), (8, 2), (0, 5), (3, 7)], draw=args(integer(0, 99), integer(1, 12)))
def whole_quotient(a: int, b: int) -> int:
    """Return how many times b fits wholly into a, where a is not negative and b is positive."""
    return a // b


@task(cases=[(7, 3), (6, 3), (0, 5), (4, 9)], draw=args(integer(0, 99), integer(1, 12)))
def quotient_and_remainder(a: int, b: int) -> list[int]:
    """Return a list of two ints: a // b and a % b, where a is not negative and b is positive."""
    return [a // b, a % b]


@task(cases=[(2, 3), (0, 0), (-1, 4), (-3, -3)], draw=args(INT, INT))
def add_squares(a: int, b: int) -> int:
    """Return the square of a plus the square of b."""
    return a**2 + b**2


@task(cases=[(2, 3), (0, 0), (-1, 4), (-3, -3)], draw=args(INT, INT))
def square_of_sum(a: int, b: int) -> int:
    """Return the square of the sum of a and b."""
    return (a + b) ** 2


@task(cases=[(5, 3), (0, 0), (2, 5), (-4, 4)], draw=args(INT, INT))
def sum_times_difference(a: int, b: int) -> int:
    """Return (a + b) times (a - b)."""
    return (a + b) * (a - b)


@task(cases=[(2, 5), (1, 1), (7, 0), (10, 3)], draw=args(integer(0, 50), integer(0, 50)))
def rectangle_perimeter(width: int, height: int) -> int:
    """Return the perimeter of a rectangle: 2 times the sum of width and height."""
    return 2 * (width + height)


@task(cases=[(3,), (0,), (1,), (10,)], draw=args(integer(0, 50)))
def cube_surface(side: int) -> int:
    """Return the surface of a cube, which is 6 times the square of side."""
    return 6 * side * side


@task(cases=[(2, 3, 4), (1, 1, 1), (5, 0, 2), (10, 2, 7)], draw=args(*[integer(0, 20)] * 3))
def box_volume(length: int, width: int, height: int) -> int:
    """Return the volume of a box: length times width times height."""
    return length * width * height


@task(cases=[(47,), (5,), (130,), (99,)], draw=args(integer(0, 9999)))
def tens_digit(n: int) -> int:
    """Return the tens digit of the non-negative number n as an int; it is 0 if n is less than 10."""
    return n // 10 % 10


@task(cases=[(472,), (5,), (0,), (90,)], draw=args(integer(0, 9999)))
def drop_last_digit(n: int) -> int:
    """Return the non-negative number n without its last decimal digit, that is n // 10."""
    return n // 10


@task(cases=[(12, 3), (0, 7), (5, 0), (99, 9)], draw=args(integer(0, 999), integer(0, 9)))
def append_digit(n: int, digit: int) -> int:
    """Return n times 10 plus digit."""
    return n * 10 + digit


@task(cases=[(472,), (5,), (0,), (9000,)], draw=args(integer(0, 9999)))
def first_digit(n: int) -> int:
    """Return the first decimal digit of the non-negative number n as an int."""
    return int(str(n)[0])


@task(cases=[(472,), (5,), (0,), (1000,)], draw=args(either(integer(0, 99), integer(0, 99999))))
def number_of_digits(n: int) -> int:
    """Return how many decimal digits the non-negative number n has; 0 has one digit."""
    return len(str(n))


@task(cases=[(472, 7), (472, 3), (0, 0), (55, 6)], draw=args(integer(0, 9999), integer(0, 9)))
def has_digit(n: int, digit: int) -> bool:
    """Return True if digit is one of the decimal digits of the non-negative number n, otherwise False."""
    return str(digit) in str(n)


@task(cases=[(2, 5), (0, 0), (1, 59), (0, 30)], draw=args(integer(0, 48), integer(0, 59)))
def total_minutes(hours: int, minutes: int) -> int:
    """Return how many minutes the hours and the minutes are together; an hour has 60 minutes."""
    return hours * 60 + minutes


@task(cases=[(130,), (0,), (59,), (60,)], draw=args(integer(0, 999)))
def leftover_seconds(seconds: int) -> int:
    """Return the seconds that are left over after all whole minutes of 60 seconds are taken away. seconds is not
    negative."""
    return seconds % 60


@task(cases=[(15,), (0,), (6,), (7,)], draw=args(integer(0, 365)))
def full_weeks(days: int) -> int:
    """Return how many whole weeks of 7 days there are in days, which is not negative."""
    return days // 7


@task(cases=[(22, 5), (0, 0), (23, 1), (10, 3)], draw=args(integer(0, 23), integer(0, 48)))
def clock_hour(hour: int, later: int) -> int:
    """Return the hour from 0 to 23 that a clock shows when later hours have passed since hour: their sum modulo 24."""
    return (hour + later) % 24


@task(cases=[(4, 8), (3, 4), (0, 0), (1, 0)], draw=args(integer(0, 99), integer(0, 99)))
def middle_of_two(a: int, b: int) -> int:
    """Return half of the sum of the non-negative numbers a and b, rounded down to an int."""
    return (a + b) // 2


@task(cases=[(200, 10), (50, 50), (0, 30), (7, 50)], draw=args(integer(0, 500), integer(0, 100)))
def percent_of(n: int, percent: int) -> int:
    """Return percent per cent of n, rounded down: n times percent, divided by 100, as an int. Neither is negative."""
    return n * percent // 100


@task(cases=[(20,), (0,), (100,), (-40,)], draw=lambda rng: (5 * rng.randint(-20, 40),))
def celsius_to_fahrenheit(celsius: int) -> int:
    """Return celsius * 9 // 5 + 32, where celsius is a multiple of 5."""
    return celsius * 9 // 5 + 32


@task(cases=[(3, 4, 5), (0, 9, 2), (7, 0, 0), (10, 1, 3)], draw=args(*[integer(0, 30)] * 3))
def total_price(price: int, count: int, shipping: int) -> int:
    """Return price times count, plus shipping."""
    return price * count + shipping


@task(cases=[(3, 1, 2), (5, 5, 5), (-1, -4, 0), (1, 2, 0)], draw=args(INT, INT, INT))
def min_of_three(a: int, b: int, c: int) -> int:
    """Return the smallest of a, b and c."""
    return min(a, b, c)


@task(cases=[(3, 1, 2), (5, 5, 5), (-1, -4, 0), (1, 9, 0)], draw=args(INT, INT, INT))
def spread_of_three(a: int, b: int, c: int) -> int:
    """Return the largest of a, b and c minus the smallest of them."""
    return max(a, b, c) - min(a, b, c)


@task(cases=[(-4,), (7,), (0,), (-1,)], draw=args(INT))
def negative_to_zero(n: int) -> int:
    """Return 0 if n is negative, otherwise n."""
    return max(n, 0)


@task(cases=[(130,), (100,), (7,), (-5,)], draw=args(integer(0, 200)))
def cap_at_hundred(n: int) -> int:
    """Return 100 if n is greater than 100, otherwise n."""
    return min(n, 100)


@task(cases=[(47,), (40,), (9,), (0,)], draw=args(integer(0, 999)))
def round_down_to_ten(n: int) -> int:
    """Return the largest multiple of 10 that is not greater than the non-negative number n."""
    return n // 10 * 10


@task(cases=[(-2, 3), (0, 0), (-1, -4), (5, 6)], draw=args(INT, INT))
def absolute_sum(a: int, b: int) -> int:
    """Return the absolute value of a plus the absolute value of b."""
    return abs(a) + abs(b)


@task(cases=[(-7, 3), (2, 5), (0, 0), (-4, -6)], draw=args(INT, INT))
def largest_absolute(a: int, b: int) -> int:
    """Return the larger of the absolute value of a and the absolute value of b."""
    return max(abs(a), abs(b))


@task(cases=[(4,), (0,), (-1,), (10,)], draw=args(INT))
def times_next(n: int) -> int:
    """Return n times (n + 1)."""
    return n * (n + 1)


@task(cases=[(4,), (1,), (0,), (10,)], draw=args(integer(0, 60)))
def sum_up_to(n: int) -> int:
    """Return the sum of all ints from 1 to n, both included; it is 0 for n = 0. n is not negative."""
    return sum(range(n + 1))


@task(cases=[(3,), (0,), (1,), (10,)], draw=args(integer(0, 16)))
def power_of_two(n: int) -> int:
    """Return 2 to the power of n, where n is not negative."""
    return int(2**n)


@task(cases=[(0,), (5,), (-1,), (100,)], draw=args(integer(-1, 1)))
def is_zero(n: int) -> bool:
    """Return True if n is 0, otherwise False."""
    return n == 0


@task(cases=[(3, 4), (3, 3), (0, 0), (-1, 1)], draw=args(integer(0, 1), integer(0, 1)))
def are_different(a: int, b: int) -> bool:
    """Return True if a and b are not equal, otherwise False."""
    return a != b


@task(cases=[(5, 3), (3, 5), (4, 4), (-2, -7)], draw=args(integer(0, 5), integer(0, 5)))
def is_greater(a: int, b: int) -> bool:
    """Return True if a is greater than b, otherwise False."""
    return a > b


@task(cases=[(3, 3), (2, 3), (9, -1), (-5, 0)], draw=args(integer(0, 5), integer(0, 5)))
def is_at_most(a: int, b: int) -> bool:
    """Return True if a is less than or equal to b, otherwise False."""
    return a <= b


@task(cases=[(5, 1, 9), (0, 1, 9), (9, 1, 9), (10, 1, 9)], draw=args(integer(0, 9), integer(0, 4), integer(5, 9)))
def is_between(n: int, low: int, high: int) -> bool:
    """Return True if n is at least low and at most high, otherwise False."""
    return low <= n <= high


@task(cases=[(2, 2, 2), (2, 2, 3), (1, 2, 2), (0, 0, 0)], draw=args(*[integer(0, 1)] * 3))
def all_three_equal(a: int, b: int, c: int) -> bool:
    """Return True if a, b and c are all equal, otherwise False."""
    return a == b == c


@task(cases=[(1, 2, 3), (1, 3, 2), (2, 2, 3), (-5, 0, 9)], draw=args(integer(0, 4), integer(2, 7), integer(5, 9)))
def in_rising_order(a: int, b: int, c: int) -> bool:
    """Return True if a is less than b and b is less than c, otherwise False."""
    return a < b < c


@task(cases=[(-1, 4), (-1, -4), (3, 2), (0, 0)], draw=args(integer(-3, 2), integer(-3, 2)))
def any_of_two_positive(a: int, b: int) -> bool:
    """Return True if a or b or both are greater than 0, otherwise False."""
    return a > 0 or b > 0


@task(cases=[(2, 4), (2, 3), (0, -6), (5, 7)], draw=args(INT, INT))
def both_even(a: int, b: int) -> bool:
    """Return True if a and b are both even, otherwise False."""
    return a % 2 == 0 and b % 2 == 0


@task(cases=[(42,), (9,), (10,), (100,)], draw=args(integer(0, 150)))
def is_two_digit(n: int) -> bool:
    """Return True if n is from 10 to 99, both included, otherwise False."""
    return 10 <= n <= 99


@task(cases=[(9, 3), (9, 2), (4, -2), (0, 0)], draw=args(choice(0, 1, 4, 9), integer(-3, 3)))
def is_square_of(a: int, b: int) -> bool:
    """Return True if a is equal to b times b, otherwise False."""
    return a == b * b


@task(cases=[(1, 2, 3), (1, 2, 4), (0, 0, 0), (-5, 5, 1)], draw=args(integer(0, 2), integer(0, 2), integer(0, 4)))
def adds_up(a: int, b: int, total: int) -> bool:
    """Return True if a plus b is equal to total, otherwise False."""
    return a + b == total


@task(cases=[(18,), (17,), (0,), (70,)], draw=args(integer(10, 26)))
def is_adult(age: int) -> bool:
    """Return True if age is 18 or more, otherwise False."""
    return age >= 18


@task(cases=[(True,), (False,), (False,), (True,)], draw=args(BOOL))
def opposite(b: bool) -> bool:
    """Return False if b is True, and True if b is False."""
    return not b


@task(cases=[(True, False), (True, True), (False, True), (False, False)], draw=args(BOOL, BOOL))
def exactly_one_true(a: bool, b: bool) -> bool:
    """Return True if exactly one of a and b is True, otherwise False."""
    return a != b


@task(cases=[(False, False), (True, True), (False, True), (True, False)], draw=args(BOOL, BOOL))
def neither_true(a: bool, b: bool) -> bool:
    """Return True if a and b are both False, otherwise False."""
    return not a and not b


@task(
    cases=[(True, False, True), (False, False, False), (True, True, True), (False, True, False)], draw=args(*[BOOL] * 3)
)
def count_true(a: bool, b: bool, c: bool) -> int:
    """Return how many of a, b and c are True, as an int."""
    return a + b + c
