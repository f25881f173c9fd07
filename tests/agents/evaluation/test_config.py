"""The configuration of an evaluation: sizes that would hang or fail later are refused at once, with the bound named."""

import pytest

from envhub.cli.commands.eval import EvalConfig
from envhub.environment import validate_config
from envhub.errors import ConfigError

WHOLE = [
    name for name, field in EvalConfig.model_fields.items() if field.annotation is int or "int" in str(field.annotation)
]


def made(**values: object) -> EvalConfig:
    config: EvalConfig = validate_config(
        EvalConfig, {"env": "guess_number", "model": "scripted:oracle", **values}, "the evaluation"
    )
    return config


@pytest.mark.parametrize("name", WHOLE)
def test_every_whole_number_has_a_largest_one(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: Input should be less than or equal to \d+ \(given '9999"):
        made(**{name: "9" * 30})
    with pytest.raises(ConfigError, match=rf"{name}: "):
        made(**{name: -1})


@pytest.mark.parametrize("name", ["temperature", "top_p", "pass_reward"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", float("nan"), 10**400])
def test_a_quantity_is_finite(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}: "):
        made(**{name: value})


@pytest.mark.parametrize(("tasks", "samples"), [(1_000_000, 2), (101, 10_000), (1001, 1000)])
def test_the_product_of_tasks_and_samples_is_bounded(tasks: int, samples: int) -> None:
    with pytest.raises(ConfigError, match=f"tasks x samples is at most 1000000, not {tasks} x {samples}"):
        made(tasks=tasks, samples=samples)


def test_large_evaluations_and_seeds_are_taken() -> None:
    config = made(tasks=1000, samples=1000, concurrency=4096, max_turns=1000, max_turn_tokens=131_072, seed=2**63 - 1)
    assert config.seed == 2**63 - 1
    assert made(tasks=0, samples=10_000).samples == 10_000
    assert made(pass_reward=-0.5).pass_reward == -0.5
