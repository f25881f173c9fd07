"""Options of engines and of sampling: what no engine can do is refused when it is given, with the bound named."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from envhub.agents.engines import SamplingParams, make_engine
from envhub.agents.engines.scripted import ScriptedEngine
from envhub.errors import ConfigError, UserError

MODELS = {"scripted": "oracle", "openai": "m", "transformers": "anywhere", "vllm": "anywhere"}
HUGE = int("9" * 30)
WHOLE = [
    ("transformers", "max_context"), ("transformers", "max_batch"), ("transformers", "seed"),
    ("vllm", "max_context"), ("vllm", "max_batch"), ("vllm", "tensor_parallel"), ("vllm", "seed"),
    ("openai", "retries"), ("openai", "max_context"), ("scripted", "fail_every"), ("scripted", "seed"),
]  # fmt: skip
REAL = [
    ("scripted", "latency"), ("openai", "timeout"), ("openai", "retry_seconds"), ("vllm", "kv_cache_gib"),
    ("vllm", "gpu_memory"), ("vllm", "start_seconds"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "name"), WHOLE)
@pytest.mark.parametrize("value", [HUGE, str(HUGE), -1, float("nan"), float("inf"), "many"])
def test_a_number_that_is_out_of_reach_is_refused(engine: str, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"engine '{engine}': {name}: ") as caught:
        make_engine(engine, MODELS[engine], options={name: value})
    if value == HUGE:
        assert "less than or equal to" in str(caught.value)


@pytest.mark.parametrize(("engine", "name"), REAL)
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), "nan", "inf", 1e300, 10**400, -0.5, "soon"]
)
def test_a_quantity_is_finite_and_not_negative(engine: str, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"engine '{engine}': {name}: "):
        make_engine(engine, MODELS[engine], options={name: value})


@pytest.mark.parametrize(("engine", "name"), [("transformers", "seed"), ("vllm", "seed"), ("scripted", "seed")])
def test_the_largest_seed_is_taken(engine: str, name: str) -> None:
    assert make_engine(engine, MODELS[engine], options={name: 2**63 - 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"deep": [float("nan")]}, object()])
def test_what_is_added_to_a_request_is_json(value: object) -> None:
    with pytest.raises(ConfigError, match="engine 'openai': extra_body: .*JSON"):
        make_engine("openai", "m", options={"extra_body": {"x": value}})


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": float("nan")}, {"temperature": float("inf")}, {"temperature": -1}, {"temperature": 1e-30}, {"top_p": float("nan")},
        {"top_k": HUGE}, {"max_tokens": HUGE}, {"min_tokens": HUGE}, {"max_tokens": 0}, {"top_k": -1},
    ],
)  # fmt: skip
def test_sampling_is_within_reach(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(values))):
        SamplingParams(**values)


class Plain(ScriptedEngine):
    """An engine of a plugin whose parameters are its options."""

    def __init__(self, model: str, *, beams: int = 1) -> None:
        super().__init__("null")


def test_an_option_that_a_plugins_engine_does_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from envhub import plugins

    monkeypatch.setattr(plugins, "load", lambda group, name: Plain)
    assert make_engine("plain", "m", options={"beams": 2}).name == "scripted"
    with pytest.raises(UserError, match="engine 'plain' has no option 'beems'; did you mean 'beams'"):
        make_engine("plain", "m", options={"beems": 2})


def test_an_unknown_number_format_is_named() -> None:
    with pytest.raises(ConfigError, match="dtype.*did you mean 'bfloat16'.*given 'bf16'"):
        make_engine("transformers", "anywhere", options={"dtype": "bf16"})


def test_options_that_were_written_as_json_are_read_again() -> None:
    options = json.loads(json.dumps({"latency": 0.5, "fail_every": 3}))
    assert make_engine("scripted", "oracle", options=options)
