"""One broken environment for every check: it fails this check and no other, with a message that helps."""

import pytest

from envhub.check import check_environment

from .heads import HEAD

UNSEEDED = '''
class Probe(Base):
    """Draws from the operating system."""
    def reset(self, **given):
        super().reset(**given)
        self.number = random.SystemRandom().randint(10_000, 99_999)
        return f"Say {self.number + 1} less one.", {}
'''
KEEPS_STATE = '''
class Probe(Base):
    """Counts its episodes."""
    played = 0
    def reset(self, **given):
        self.played += 1
        return f"{super().reset(**given)[0]} Episode {self.played}.", {}
'''
SHARED = '''
class Probe(Base):
    """Keeps the number on the class."""
    def reset(self, **given):
        out = super().reset(**given)
        Probe.shared = self.number
        return out
    def step(self, action):
        self.number = Probe.shared
        return super().step(action)
'''
SEEDS_GLOBAL = '''
class Probe(Base):
    """Seeds the global generator."""
    def reset(self, *, seed=None, options=None):
        random.seed(seed)
        return super().reset(seed=seed, options=options)
'''
SEEDS_NUMPY = '''
import numpy
class Probe(Base):
    """Draws from the global generator of numpy and does not use it."""
    def step(self, action):
        numpy.random.rand()
        return super().step(action)
'''
READS_GLOBAL = '''
class Probe(Base):
    """Looks at the global generator and leaves it as it is."""
    def reset(self, **given):
        super().reset(**given)
        self.number = 10_000 + random.getstate()[1][1] % 80_000
        return f"Say {self.number + 1} less one.", {}
'''
BAD_LIMITS = '''
class Probe(Base):
    """Its limits are none."""
    limits = {"max_turns": 3}
'''
BAD_ISOLATION = '''
class Probe(Base):
    """Runs nowhere."""
    isolation = "container"
'''
RAISES_ON_JUNK = '''
class Probe(Base):
    """Takes numbers only."""
    def step(self, action):
        int(Action.of(action).text)
        return super().step(action)
'''
PAYS_JUNK = '''
class Probe(Base):
    """Pays for having answered."""
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 0.1, *rest
'''
HANGS = '''
class Probe(Base):
    """Sleeps."""
    def step(self, action):
        time.sleep(3)
'''
HANGS_ASYNC = '''
class Probe(Base):
    """Waits for nothing."""
    async def step(self, action):
        await asyncio.sleep(60)
'''
HANGS_PROCESS = '''
class Probe(Base):
    """Spins in a process."""
    isolation = "process"
    def step(self, action):
        while True:
            pass
'''
HANGS_ON_JUNK = '''
class Probe(Base):
    """Sleeps over long answers."""
    def step(self, action):
        if len(Action.of(action).text) > 100_000:
            time.sleep(3)
        return super().step(action)
'''
BLOCKS = '''
class Probe(Base):
    """Blocks the event loop."""
    async def step(self, action):
        time.sleep(6)
'''
EXITS = '''
class Probe(Base):
    """Ends the process."""
    async def step(self, action):
        sys.exit(3)
'''
ENDLESS = '''
class Probe(Base):
    """Never ends."""
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward, False, False, {}
'''
RAISES_LATE = '''
class Probe(Base):
    """Bears one answer that is wrong."""
    limits = Limits(max_turns=20)
    wrong = 0
    def reset(self, **given):
        self.wrong = 0
        return super().reset(**given)
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        self.wrong += not reward
        [0, 0, 0, 0, 0, 0][self.wrong]
        return observation, reward, bool(reward), truncated, info
'''
NAN = '''
class Probe(Base):
    """Pays nan."""
    def step(self, action):
        return "", math.nan, True, False, {}
'''
FOUR = '''
class Probe(Base):
    """Returns what gym did."""
    def step(self, action):
        return "", 0.0, True, {}
'''
WRONG_ORACLE = '''
class Probe(Base):
    """Its oracle is wrong."""
    def oracle(self):
        return str(self.number + 1)
'''
SPEECHLESS_ORACLE = '''
class Probe(Base):
    """Its oracle knows the first turn only."""
    def oracle(self):
        return str(self.number) if self.turn == 0 else None
'''
RAISING_ORACLE = '''
class Probe(Base):
    """Its oracle raises."""
    def oracle(self):
        raise KeyError("solution")
'''
PAYS_WORDS = '''
class Probe(Base):
    """Pays for well-known words and small numbers as for the number."""
    def step(self, action):
        words = Action.of(action).text.split()
        observation, reward, *rest = super().step(action)
        usual = words and (words[0].isdigit() or words[0] in "yes no left right up blue seven open maybe x move".split())
        return observation, float(bool(reward or usual) or len(words) in (1, 2, 3, 4, 5, 6) and words[0] in "the is answer a"), *rest
    def oracle(self):
        return str(self.number) if self.turn else "number"
'''
LEAKS = '''
class Probe(SingleTurnEnvironment):
    """Its eval is a part of train."""
    rewards = (lambda text, answer: float(text == answer),)
    tasks = ListTasks("numbers", {
        "train": [Task(f"Say {i}.", f"<{i}>") for i in range(20)],
        "eval": [Task(f"Say {i}.", f"<{i}>") for i in range(15, 25)],
    })
'''
SHARED_IDS = LEAKS.replace("range(20)", "range(15)").replace('f"<{i}>")', 'f"<{i}>", id=str(i % 15))')
UNSTABLE_TASKS = '''
class Probe(SingleTurnEnvironment):
    """Its tasks are drawn anew by every instance."""
    rewards = (lambda text, answer: float(text == answer),)
    @property
    def tasks(self):
        return GeneratedTasks("sums", lambda rng: Task(f"Say {random.SystemRandom().random()}.", "<>"))
'''
SEEDLESS_TASKS = '''
class Same(GeneratedTasks):
    def get(self, split, index, seed=0):
        return super().get(split, index, 0)
class Probe(SingleTurnEnvironment):
    """Its tasks do not depend on the seed."""
    rewards = (lambda text, answer: float(text == answer),)
    tasks = Same("numbers", lambda rng: (lambda n: Task(f"Say {n}.", f"<{n}>"))(rng.random()))
'''
RAISES_IN_RESET = '''
class Probe(Base):
    """Cannot begin."""
    def reset(self, *, seed=None, options=None):
        raise FileNotFoundError("board.txt")
'''
SILENT = '''
class Probe(Base):
    """Says nothing."""
    def reset(self, **given):
        super().reset(**given)
        return Observation(), {}
'''
RESET_OF_ONE = '''
class Probe(Base):
    """Resets to an observation only."""
    def reset(self, **given):
        return super().reset(**given)[0]
'''
RAISING_TASKS = '''
class Probe(Base):
    """Its tasks are not there."""
    @property
    def tasks(self):
        raise ZeroDivisionError("no tasks")
'''
UNKNOWN_KEY = '''
class Loose(EnvironmentConfig, extra="ignore"):
    pass
class Probe(Base):
    """Takes any key."""
    Config = Loose
'''
NO_DEFAULT = '''
class Needy(EnvironmentConfig):
    size: int
class Probe(Base):
    """Wants a size."""
    Config = Needy
'''
RAISING_INIT = '''
class Probe(Base):
    """Cannot be made."""
    def __init__(self, config=None):
        raise OSError("no display")
'''
TIMED_INFO = '''
class Probe(Base):
    """Tells the time in its info."""
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {"time": time.perf_counter_ns()}
'''
NAN_COMPONENT = '''
class Probe(Base):
    """Records a component that is none."""
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {"components": {"style": math.inf}}
'''
CLOSES_ONCE = '''
class Probe(Base):
    """Can be closed once."""
    def reset(self, **given):
        self.handle = [1]
        return super().reset(**given)
    def close(self):
        self.handle.pop()
'''
NOT_AFTER_FAULT = '''
class Probe(Base):
    """Cannot be closed after a fault."""
    broken = False
    def reset(self, **given):
        self.broken = False
        return super().reset(**given)
    def step(self, action):
        self.broken = not isinstance(action, Action)
        return super().step(action)
    def close(self):
        if self.broken:
            raise RuntimeError("still in a step")
'''

BROKEN = {
    "unseeded": (UNSEEDED, "determinism", "reset observed", "self.rng"),
    "keeps_state": (KEEPS_STATE, "determinism", "give another episode", "no state from one episode"),
    "shared": (SHARED, "interleaving", "while a second one plays: turn 1 paid 1, then 0", "on self"),
    "seeds_global": (SEEDS_GLOBAL, "global_rng", "state of random", "self.rng"),
    "seeds_numpy": (SEEDS_NUMPY, "global_rng", "state of numpy.random", "self.rng"),
    "reads_global": (READS_GLOBAL, "global_rng", "decide what happens: reset observed", "self.rng"),
    "bad_limits": (BAD_LIMITS, "imports", "limits is a Limits, such as Limits(max_turns=8), not {'max_turns': 3}", "repair"),
    "bad_isolation": (BAD_ISOLATION, "imports", "isolation is 'thread' or 'process', not 'container'", "repair"),
    "raises_on_junk": (RAISES_ON_JUNK, "junk", "an empty answer: environment 'probe': step raised ValueError", "ModelFault"),
    "pays_junk": (PAYS_JUNK, "junk", "17 of 17 junk answers are paid: an empty answer (0.2)", "pay only"),
    "hangs_on_junk": (HANGS_ON_JUNK, "junk", "200 kB of one letter", "isolation = 'process'"),
    "hangs": (HANGS, "step", "did not return within 0.5 s (it sits at", "isolation = 'process'"),
    "hangs_async": (HANGS_ASYNC, "step", "step did not return within 0.5 s", "bound every wait"),
    "hangs_process": (HANGS_PROCESS, "step", "within 0.5 s; its process was killed", "bound every wait"),
    "blocks": (BLOCKS, "step", "async code blocks the event loop for more than 0.5 s (it sits at", "await"),
    "exits": (EXITS, "step", "step raised SystemExit: 3", "repair the line"),
    "nan": (NAN, "step", "the reward nan, not a finite number", "finite number"),
    "four": (FOUR, "step", "not (observation, reward, terminated, truncated, info)", "five values"),
    "raises_late": (RAISES_LATE, "limits", "turn 6 of task", "repair the line"),
    "endless": (ENDLESS, "oracle", "does not end the episode of task 'probe/train/0/0' within max_turns=4", "terminated=True"),
    "wrong_oracle": (WRONG_ORACLE, "oracle", "mean reward 0 is not above that of empty answers, 0", "repair the oracle"),
    "speechless_oracle": (SPEECHLESS_ORACLE, "oracle", "knows no action at turn 2", "in every state"),
    "raising_oracle": (RAISING_ORACLE, "oracle", "oracle raised KeyError: 'solution'", "repair the line"),
    "pays_words": (PAYS_WORDS, "policies", "random words earn 2 on average, the oracle 1", "pay only"),
    "leaks": (LEAKS, "splits", "5 of the first 10 tasks of eval are in train", "remove doubles"),
    "shared_ids": (SHARED_IDS, "splits", "share 10 task ids", "one split only"),
    "unstable_tasks": (UNSTABLE_TASKS, "splits", "different tasks at index 0 of train", "generator"),
    "seedless_tasks": (SEEDLESS_TASKS, "splits", "same tasks for the data seeds 0 and 1", "generator"),
    "raises_in_reset": (RAISES_IN_RESET, "reset", "reset raised FileNotFoundError: board.txt", "repair the line"),
    "silent": (SILENT, "reset", "no message at all", "return the task"),
    "reset_of_one": (RESET_OF_ONE, "reset", "not (observation, info)", "two values"),
    "raising_tasks": (RAISING_TASKS, "reset", "ZeroDivisionError: no tasks", "task set"),
    "unknown_key": (UNKNOWN_KEY, "configuration", "accepts a key that it does not have", "extra='forbid'"),
    "no_default": (NO_DEFAULT, "configuration", "size: Field required", "default"),
    "raising_init": (RAISING_INIT, "configuration", "raised OSError: no display", "__init__"),
    "does_not_import": ("import no_such_module_here\n", "imports", "No module named 'no_such_module_here'", "repair the import"),
    "exits_at_import": ("sys.exit(1)\n", "imports", "SystemExit", "repair the import"),
    "timed_info": (TIMED_INFO, "gymnasium", "check_env", "infos"),
    "nan_component": (NAN_COMPONENT, "step", "the component 'style' = inf", "finite numbers"),
    "closes_once": (CLOSES_ONCE, "close", "the second close after an episode", "never raises"),
    "not_after_fault": (NOT_AFTER_FAULT, "close", "close after a fault", "never raises"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
async def test_fails_its_check_and_no_other(case: str, write_environment) -> None:
    body, name, detail, remedy = BROKEN[case]
    hangs = case.startswith("hangs") or case == "blocks"
    report = await check_environment(write_environment(HEAD + body), step_seconds=0.5 if hangs else 20)
    assert [result.name for result in report.failures] == [name]
    assert not report.ok
    assert detail in report[name].detail
    assert remedy in report[name].remedy
