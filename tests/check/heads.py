"""What the environments of these tests begin with."""

HEAD = '''
from envhub import EnvironmentConfig, GeneratedTasks, Limits, ListTasks, SingleTurnEnvironment, Task
import math, random

class Base(Environment):
    """Say the number that is asked for, in two turns."""

    limits = Limits(max_turns=4)

    def reset(self, *, seed=None, options=None):
        self.number, self.turn = self.rng.randint(10_000, 99_999), 0
        return f"Say {self.number + 1} less one, twice.", {}

    def step(self, action):
        self.turn += 1
        right = Action.of(action).text == str(self.number)
        return f"turn {self.turn}", float(right), self.turn == 2, False, {}

    def oracle(self):
        return str(self.number)
'''
