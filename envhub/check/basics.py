"""The first checks: whether it imports, can be configured, begins an episode, takes a step, and closes."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any, cast

from envhub.check.play import Episode, oracle_policy, play, random_policy, scripted
from envhub.check.report import fail, skip, warn
from envhub.check.subject import Subject, of_fault, remedy_of
from envhub.driver import Driver
from envhub.errors import DeadlineError, Fault, NotRegisteredError, UserError
from envhub.guard import described
from envhub.messages import Action

_UNKNOWN_KEY = "no_such_key_of_the_checker"
_CONFIG_REMEDY = "give the configuration a default for every key, and values that fit"
_INIT_REMEDY = "do nothing in __init__ that can fail: open resources in reset"


async def imports(subject: Subject) -> str:
    """The class can be imported."""
    try:
        await subject.load()
    except NotRegisteredError:
        raise
    except (UserError, Fault) as problem:
        raise fail(str(problem), "repair the import, or name another file: path/file.py:Class") from problem
    return f"{subject.cls.__name__} from {subject.spec.target.rpartition(':')[0]}"


async def configuration(subject: Subject) -> str:
    """It constructs, and refuses keys that its configuration does not have."""
    try:
        await subject.driver()
    except (UserError, Fault) as problem:
        raised = isinstance(problem, Fault) or problem.__cause__ is not None
        raise fail(str(problem), _INIT_REMEDY if raised else _CONFIG_REMEDY) from problem
    try:
        await subject.driver(**{_UNKNOWN_KEY: 1})
    except Exception:  # whatever it raises, the key was refused
        keys = ", ".join(subject.cls.Config.model_fields) or "none"
        return f"keys: {keys}; unknown ones are refused"
    raise fail(
        f"the configuration accepts a key that it does not have ({_UNKNOWN_KEY})",
        "derive Config from envhub.EnvironmentConfig and leave extra='forbid' as it is: a misspelt key is an error",
    )


async def documentation(subject: Subject) -> str:
    """A docstring, and a card beside a package."""
    cls, wanted = subject.cls, []
    if not (cls.__dict__.get("__doc__") or "").strip():
        wanted.append(f"{cls.__name__} has no docstring: say what the task is and what is rewarded")
    card = _card_of(subject)
    if card is not None and not (card.is_file() and card.read_text(encoding="utf-8", errors="replace").strip()):
        wanted.append(f"the package has no card: write {card.name} beside its __init__.py")
    if wanted:
        raise warn("; ".join(wanted), "document the environment for those who train on it")
    return "docstring" if card is None else "docstring and card"


def _card_of(subject: Subject) -> Path | None:
    """Where the README of a package belongs; None for a single file."""
    try:
        file = Path(inspect.getfile(subject.cls))
    except (TypeError, OSError):
        return None
    package = sys.modules.get(subject.cls.__module__.rpartition(".")[0])
    in_package = file.name == "__init__.py" or (
        package is not None and (file.parent / "__init__.py").is_file() and hasattr(package, "__path__")
    )
    if not in_package:
        return None
    project = file.parent.parent
    # The card of a package that is a project of its own stands beside its pyproject.toml.
    return (project if (project / "pyproject.toml").is_file() else file.parent) / "README.md"


async def reset(subject: Subject) -> str:
    """An episode begins, and the model is told something."""
    try:
        await subject.draw_tasks()
    except UserError as problem:
        raise fail(f"its tasks cannot be read: {problem}", "repair the task set or the data file") from problem
    except DeadlineError as problem:
        raise fail(str(problem), remedy_of(problem)) from problem
    except Exception as problem:  # a task set is the environment's own code
        raise fail(f"its tasks cannot be read: {described(problem)}", "repair the task set") from problem
    episode = await subject.play(subject.tasks[0], scripted(()))
    if episode.fault is not None:
        raise of_fault(episode)
    observation = episode.opening
    if not observation.messages:
        raise fail(
            "reset observes no message at all: the model is told nothing",
            "return the task as a str or as messages: return 'Guess my number.', {}",
        )
    if not observation.text.strip() and not any(message.images for message in observation.messages):
        raise fail("reset observes messages without text and images", "put the task into the first message")
    return f"{len(observation.messages)} messages, {len(observation.text)} characters"


async def step(subject: Subject) -> str:
    """The steps of one episode return what they must: played by the oracle where there is one, else by random words."""
    policy = oracle_policy if subject.has_oracle else random_policy
    episodes = await subject.play_all(policy, 1)
    if episodes[0].fault_call == "oracle" or not episodes[0].steps:
        if episodes[0].fault_call == "step":
            raise of_fault(episodes[0])
        episodes = await subject.play_all(random_policy, 1, max_turns=1)
    episode = episodes[0]
    if episode.fault is not None and episode.fault_call != "oracle":
        raise of_fault(episode)
    return f"{len(episode.steps)} turns with a total reward of {episode.reward:g}"


async def records(subject: Subject) -> str:
    """Reward components are recorded, and infos are JSON."""
    driver = await subject.driver()
    names = [] if driver.rubric is None else [item.name for item in driver.rubric.rewards]
    finished = [episode for episode in subject.seen if episode.steps and episode.steps[-1].terminated]
    if names and finished and not any("components" in taken.info for taken in finished[0].steps):
        raise warn(
            f"the rubric has the rewards {', '.join(names)}, yet no info holds their components",
            "return the info of self.score(action), or put info['components'] = {name: value} into the last step",
        )
    for episode in subject.seen:
        _json_infos(episode)
    return f"components: {', '.join(names) or 'none'}; infos are JSON"


def _json_infos(episode: Episode) -> None:
    infos: list[tuple[str, Any]] = [("reset", episode.opening_info)]
    infos += [(f"turn {turn}", taken.info) for turn, taken in enumerate(episode.steps, start=1)]
    for where, info in infos:
        try:
            json.dumps(info)
        except (TypeError, ValueError, RecursionError) as problem:
            raise warn(
                f"the info of {where} is not JSON and will be missing from records: {problem}",
                "keep infos to str, numbers, bool, None, lists and dicts with str keys",
            ) from None


async def close(subject: Subject) -> str:
    """Closing is possible twice, after a fault, and before the first reset."""
    async with subject.opened() as driver:
        await play(driver, subject.tasks[0], random_policy, 1)
        for which in ("first", "second"):
            await _close_once(driver, f"the {which} close after an episode")
    async with subject.opened() as driver:
        await driver.reset(subject.tasks[0])
        try:
            await driver.step(cast(Action, None))  # no action at all: a fault in all but those that ignore actions
        except (Fault, UserError) as problem:
            if isinstance(problem, DeadlineError):
                raise skip("step hangs on an object that is no action") from problem
        await _close_once(driver, "close after a fault")
    if subject.cls.isolation == "process":
        return "twice, and after a fault"
    async with subject.opened() as driver:
        try:
            await driver.close_environment()
        except (Fault, UserError) as problem:
            raise warn(
                f"close before the first reset: {problem}",
                "let close free what is there: a reset that fails half-way is closed, too",
            ) from problem
    return "twice, after a fault, and before the first reset"


async def _close_once(driver: Driver, what: str) -> None:
    # Driver.close drops what the environment's own close raises; here that is what is looked for.
    try:
        await driver.close_environment()
    except (Fault, UserError) as problem:
        raise fail(f"{what}: {problem}", "let close do nothing where nothing is open; it never raises") from problem
