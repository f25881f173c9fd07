"""An environment of many turns, and executors on a scripted engine."""

import pytest

from envhub.agents.executors import MultiTurnExecutor

COUNTER = """
class Counter(Environment):
    '''Counts turns; ends when it is told to stop. Rewards one a turn.'''
    def __init__(self, config=None, **kw):
        super().__init__(config, **kw)
    async def reset(self, *, seed=None, options=None):
        self.turns = 0
        return f"begin {self.rng.randrange(1000)}", {"pid": os.getpid()}
    async def step(self, action):
        self.turns += 1
        return f"turn {self.turns}", 1.0, action.text == "stop", action.text == "cut", {"heard": action.text}
"""


@pytest.fixture
def counter(write_environment):
    return write_environment(COUNTER, "Counter")


@pytest.fixture
def executor_of():
    """An executor whose model says what a function of (messages, request) says."""

    from envhub.agents.engines.scripted import ScriptedEngine
    from envhub.agents.rendering import ByteRenderer

    def make(policy, kind=MultiTurnExecutor, **options):
        return kind(ScriptedEngine(policy, **options), ByteRenderer())

    return make
