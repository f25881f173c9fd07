"""The package that `envhub init` writes."""

import keyword
import re
import sys
from pathlib import Path
from string import Template

from envhub.errors import UserError
from envhub.registry import all_specs

_TAKEN = {*sys.stdlib_module_names, "envhub", "tests"}

_ENVIRONMENT = Template('''"""$title: count a letter in a word."""

import random

from envhub import GeneratedTasks, Message, SingleTurnEnvironment, Task

LETTERS = "abcdefg"


def make_task(rng: random.Random) -> Task:
    """One task. All randomness comes from `rng`; `answer` is never shown to the model."""
    word = "".join(rng.choices(LETTERS, k=rng.randint(8, 14)))
    letter = rng.choice(word)
    question = f"How many times does the letter {letter!r} occur in {word!r}? Answer with the number only."
    return Task(question, answer=str(word.count(letter)))


def correct(text: str, answer: str) -> float:
    """A reward function: it asks for what it needs by name (text, answer, task, messages, ...)."""
    return float(text.strip() == answer)


class ${cls}Environment(SingleTurnEnvironment):
    """Count how often a letter occurs in a word. Reward 1 for the right number, else 0."""

    name = "$name"
    tasks = GeneratedTasks("$name", make_task)
    rewards = (correct,)
''')

_TEST = Template("""import asyncio

from envhub import make

from $name import ${cls}Environment


def test_the_right_answer_pays_and_a_wrong_one_does_not():
    async def play(text):
        environment = ${cls}Environment()
        await environment.reset(seed=1)
        return (await environment.step(text or environment.task.answer))[1]

    assert asyncio.run(play(None)) == 1.0
    assert asyncio.run(play("no number")) == 0.0


def test_it_is_found_by_its_name_once_the_package_is_installed_or_registered():
    assert make(${cls}Environment).name == "$name"
""")

_README = Template("""# $name

Count how often a letter occurs in a word.

| | |
|---|---|
| tasks | endless random words |
| action | the number, and nothing else |
| reward | 1 for the right number, else 0 |
| ends | after one turn |
| oracle | the right number |

    envhub check $name
    envhub eval $name --model scripted:oracle
    envhub train --env $name
""")

_PYPROJECT = Template("""[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$distribution"
version = "0.1.0"
description = "An environment for envhub."
readme = "README.md"
requires-python = ">=3.11"
dependencies = []  # and envhub, which is installed from its own folder

[project.entry-points."envhub.environments"]
$name = "$name:${cls}Environment"

[tool.setuptools]
packages = ["$name"]

[tool.pytest.ini_options]
pythonpath = ["."]
""")


def write_package(place: Path, given: str) -> list[Path]:
    """Write a package that holds one environment into a folder of its name, below `place`; returns its files.

    A `-` of the folder's name is a `_` of the package's. Raises UserError for a name that is no Python name or that of
    another module, and for a folder that exists and is not empty.
    """
    name = given.replace("-", "_")
    if not re.fullmatch(r"_*[a-z][a-z0-9_]*", name) or len(name) > 64 or keyword.iskeyword(name) or name in _TAKEN:
        taken = " that Python does not use itself" if keyword.iskeyword(name) or name in _TAKEN else ""
        raise UserError(
            f"{given!r} cannot name an environment: a name is a Python identifier{taken}, of at most 64 small letters, "
            "digits and _, such as my_env; the package is written to the current folder (--folder names another)"
        )
    existing = all_specs().get(name)
    if existing is not None and existing.source == "bundled":
        raise UserError(f"{name!r} comes with envhub; choose another name")
    folder = place / given
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty; choose another name")
    values = {
        "name": name,
        "cls": "".join(part.capitalize() for part in name.split("_") if part),
        "title": name.replace("_", " ").strip().capitalize(),
        "distribution": name.strip("_").replace("_", "-"),
    }
    files = {
        folder / name / "__init__.py": _ENVIRONMENT,
        folder / "tests" / f"test_{name}.py": _TEST,
        folder / "README.md": _README,
        folder / "pyproject.toml": _PYPROJECT,
    }
    try:
        for path, template in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(template.substitute(values), encoding="utf-8")
    except OSError as problem:
        raise UserError(f"cannot write {folder}: {problem.strerror}") from problem
    return list(files)
