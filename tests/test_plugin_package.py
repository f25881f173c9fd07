"""A package of somebody else's publishes a part in each of the five groups: built, installed, found and used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("torch")  # an algorithm is a part of the trainer

PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "envhub-parrots"
version = "0.3.0"
dependencies = ["envhub"]

[project.entry-points."envhub.environments"]
"parrots/parrot-v2" = "envhub_parrots.environment:ParrotEnvironment"

[project.entry-points."envhub.rewards"]
parroted = "envhub_parrots.rewards:parroted"

[project.entry-points."envhub.algorithms"]
parrot_reinforce = "envhub_parrots.algorithm:PARROT_REINFORCE"

[project.entry-points."envhub.engines"]
parrot = "envhub_parrots.engine:ParrotEngine"

[project.entry-points."envhub.parsers"]
feathers = "envhub_parrots.parser:FeathersParser"

[tool.setuptools]
packages = ["envhub_parrots"]
"""

SOURCES = {
    "__init__.py": "",
    "environment.py": '''
from envhub import EnvironmentConfig, GeneratedTasks, SingleTurnEnvironment, Task
from envhub_parrots.rewards import parroted


class ParrotEnvironment(SingleTurnEnvironment):
    """Say it again."""

    class Config(EnvironmentConfig):
        most: int = 9

    rewards = (parroted,)

    @property
    def tasks(self):
        def make(rng):
            word = str(rng.randint(1, self.config.most))
            return Task(word, answer=word)

        return GeneratedTasks("parrot", make)
''',
    "rewards.py": """
from envhub import reward


@reward(weight=2.0)
def parroted(text, answer):
    return float(text == answer)
""",
    "algorithm.py": """
from envhub.trainer.algorithms import Algorithm


def sign(rewards, groups, lengths):
    return rewards.sign()


PARROT_REINFORCE = Algorithm("parrot_reinforce", sign, needs_groups=False)
""",
    "engine.py": """
from envhub.agents.engines.scripted import ScriptedEngine


class ParrotEngine(ScriptedEngine):
    name = "parrot"

    def __init__(self, model, **options):
        super().__init__(lambda messages, request: messages[-1].text + model, **options)
""",
    "parser.py": """
from envhub.agents.parsers import Parsed, Parser


class FeathersParser(Parser):
    name = "feathers"

    def parse(self, text):
        return Parsed(text.strip("~"))
""",
}

USE = """
import asyncio, json
import torch
from envhub import RewardContext, Task, Action, plugins, registry
from envhub.agents.engines import make_engine
from envhub.agents.executors import SingleTurnExecutor
from envhub.agents.parsers import get_parser
from envhub.agents.rendering import ByteRenderer
from envhub.trainer.algorithms import get_algorithm

found = registry.spec("parrots/parrot")
environment = registry.make("parrots/parrot-v2", most=3)
reward = plugins.load(plugins.REWARDS, "parroted")
algorithm = get_algorithm("parrot_reinforce")
engine = make_engine("parrot", "~~", options={"seed": 4})
parser = get_parser("feathers")


async def main():
    task = environment.tasks.get("train", 0)
    await environment.reset(seed=1, options={"task": task})
    step = await environment.step(task.answer)
    score = await reward.score(RewardContext(Task(answer="a"), Action("a")))
    rollout = await SingleTurnExecutor(engine, ByteRenderer(), parser).run(found, task)
    return [int(task.answer) <= 3, step[1], step[2], score, rollout.reward, str(rollout.outcome), rollout.turns[0].action.text == task.answer]


print(json.dumps({
    "spec": [found.id, found.source],
    "played": asyncio.run(main()),
    "advantages": algorithm.estimator(torch.tensor([-3.0, 2.0]), torch.tensor([0, 0]), torch.tensor([4, 4])).tolist(),
    "parsed": parser.parse("~hello~").text,
}))
"""

EXPECTED = (
    '{"spec": ["parrots/parrot-v2", "envhub-parrots"], '
    '"played": [true, 2.0, true, 1.0, 2.0, "finished", true], '
    '"advantages": [-1.0, 1.0], "parsed": "hello"}\n'
)


def _run(*command: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the package is installed into."""
    tree, wheels, installed = (tmp_path_factory.mktemp(name) for name in ("tree", "wheels", "site"))
    package = tree / "envhub_parrots"
    package.mkdir()
    (tree / "pyproject.toml").write_text(PYPROJECT)
    for name, source in SOURCES.items():
        (package / name).write_text(source)
    offline = ("--quiet", "--no-deps", "--no-index")
    _run("-m", "pip", "wheel", *offline, "--no-build-isolation", "--wheel-dir", str(wheels), str(tree))
    (wheel,) = wheels.glob("envhub_parrots-0.3.0-*.whl")
    _run("-m", "pip", "install", *offline, "--target", str(installed), str(wheel))
    return installed


def test_all_five_are_found_and_work(site: Path) -> None:
    assert _run("-c", USE, PYTHONPATH=str(site)) == EXPECTED


def test_without_the_package_none_is_there() -> None:
    code = (
        "from envhub import plugins\n"
        "names = {name for group in plugins.GROUPS for name in plugins.names(group)}\n"
        "print(sorted(name for name in names if 'parrot' in name or name == 'feathers'))"
    )
    assert _run("-c", code) == "[]\n"
