"""What is worth a warning and no failure."""

import pytest

from envhub.check import check_environment

from .heads import HEAD

PAYS_JUNK = '''
class Probe(Base):
    """Pays for having answered."""
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 0.1, *rest
'''

WARNED = {
    "undocumented": (
        "class Probe(Base):\n    pass\n",
        "documentation",
        "Probe has no docstring",
    ),
    "unjson": (
        'class Probe(Base):\n    """Has a set."""\n    def step(self, action):\n'
        '        *rest, _ = super().step(action)\n        return *rest, {"seen": {1}}\n',
        "records",
        "the info of turn 1 is not JSON",
    ),
    "pays_without_oracle": (
        PAYS_JUNK + "    oracle = Environment.oracle\n",
        "junk",
        "junk answers are paid",
    ),
    "no_components": (
        'class Probe(SingleTurnEnvironment):\n    """Hides its components."""\n'
        "    rewards = (lambda text, answer: float(text == answer),)\n"
        '    tasks = ListTasks("one", {"train": [Task("Say one.", "<one>")]})\n'
        "    async def step(self, action):\n        *rest, _ = await super().step(action)\n        return *rest, {}\n",
        "records",
        "no info holds their components",
    ),
    "close_before_reset": (
        'class Probe(Base):\n    """Closes what reset has opened."""\n    def close(self):\n        self.number\n',
        "close",
        "close before the first reset",
    ),
}


@pytest.mark.parametrize("case", WARNED)
async def test_warns_and_fails_nothing(case: str, write_environment) -> None:
    body, name, detail = WARNED[case]
    report = await check_environment(write_environment(HEAD + body))
    assert report.ok
    assert [result.name for result in report.results if result.status == "warn"] == [name]
    assert detail in report[name].detail
    assert report[name].remedy
