"""Models that cannot be loaded: what is said of a damaged folder, and of what is not the folder's fault."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from envhub.agents.engines import checkpoints
from envhub.agents.engines.loading import load_causal_model, load_tokenizer
from envhub.agents.models import resolve_model
from envhub.agents.session import prepare_agent, started
from envhub.errors import UserError


def fails_with(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*given: object, **options: object) -> None:
        raise problem

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load)


def refusal(model: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        load_causal_model(str(model), torch.float32, "cpu")
    return str(caught.value)


@pytest.mark.parametrize(
    "problem",
    [OSError("no file named x"), ValueError("no such model type"), KeyError("foo"), ZeroDivisionError("division by zero"),
     RuntimeError("size mismatch for lm_head")],
)  # fmt: skip
def test_a_damaged_folder_comes_with_the_remedy(
    problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_with(problem, monkeypatch)
    said = refusal(tmp_path)
    assert f"{type(problem).__name__}: {problem}" in said and said.endswith("; copy or save it again")


@pytest.mark.parametrize(
    "problem",
    [ImportError("it needs the package x"), MemoryError(), torch.OutOfMemoryError("CUDA out of memory"),
     RuntimeError("can't allocate memory"), PermissionError("denied")],
)  # fmt: skip
def test_what_is_not_the_folders_fault_says_what_it_is(
    problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_with(problem, monkeypatch)
    said = refusal(tmp_path)
    assert said.startswith(f"transformers cannot load {tmp_path}: {type(problem).__name__}") and str(problem) in said
    assert "again" not in said


def test_the_name_of_a_hub_is_no_folder_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(OSError("cannot reach the hub"), monkeypatch)
    assert refusal("org/name").endswith("OSError: cannot reach the hub")


def test_the_earlier_checkpoint_is_the_newest_that_was_finished(tmp_path: Path) -> None:
    for step in (3, 12, 20, 1_000_000):
        folder = tmp_path / checkpoints.folder_name(step)
        folder.mkdir()
        if step != 20:
            (folder / checkpoints.META).touch()
    (tmp_path / "step-x").mkdir()
    assert [step for step, _ in checkpoints.finished(tmp_path)] == [3, 12, 1_000_000]
    assert checkpoints.earlier(tmp_path / "step-1000000") == tmp_path / "step-000012"
    assert checkpoints.earlier(tmp_path / "step-000003") is None
    assert checkpoints.earlier(tmp_path) is None
    assert checkpoints.finished(tmp_path / "none") == []


def test_a_damaged_checkpoints_model_names_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(ValueError("no such model type"), monkeypatch)
    for step in (3, 12):
        (tmp_path / checkpoints.folder_name(step) / "model").mkdir(parents=True)
        (tmp_path / checkpoints.folder_name(step) / checkpoints.META).touch()
    assert refusal(tmp_path / "step-000012" / "model").endswith(f"use the earlier checkpoint {tmp_path}/step-000003")


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A checkpoint that holds the tiny model, with an earlier one beside it."""
    for step in (3, 12):
        shutil.copytree(resolve_model("tiny").path, tmp_path / checkpoints.folder_name(step) / "model")
        (tmp_path / checkpoints.folder_name(step) / checkpoints.META).touch()
    return tmp_path / "step-000012"


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def damage(raw: bytes) -> bytes:
        value = json.loads(raw)
        change(value)
        return json.dumps(value).encode()

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-100],
        lambda raw: b"",
        lambda raw: b"{}",
        lambda raw: b"[]",
        lambda raw: b"\xff" * 50,
        edited(lambda value: value.pop("model")),
        edited(lambda value: value.update(model=3)),
        edited(lambda value: value["model"].update(vocab={})),
        edited(lambda value: value.update(added_tokens=[1])),
    ],
)
async def test_a_damaged_tokenizer_is_named_with_the_earlier_checkpoint(
    later: Path, damage: Callable[[bytes], bytes]
) -> None:
    file = later / "model" / "tokenizer.json"
    file.write_bytes(damage(file.read_bytes()))
    for folder in (later, later / "model"):
        with pytest.raises(
            UserError, match=rf"{file} (is|does) .*use the earlier checkpoint {later.parent}/step-000003$"
        ):
            async with started(prepare_agent(str(folder), "transformers")):
                pass
    shutil.rmtree(later.parent / "step-000003")
    with pytest.raises(UserError, match=rf"{file} is damaged: .*; copy or save it again$"):
        load_tokenizer(later / "model")


@pytest.mark.parametrize("text", ["{", '{"tokenizer_class": 3}', '{"added_tokens_decoder": {"x": 3}}'])
async def test_a_tokenizer_with_damaged_settings_comes_with_the_remedy(later: Path, text: str) -> None:
    (later / "model" / "tokenizer_config.json").write_text(text)
    with pytest.raises(UserError, match="its tokenizer does not load: .*use the earlier checkpoint .*step-000003$"):
        async with started(prepare_agent(str(later), "transformers")):
            pass


def test_a_package_that_a_tokenizer_needs_is_not_the_folders_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*given: object) -> None:
        raise ImportError("it needs the package x")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    with pytest.raises(UserError, match="its tokenizer does not load: ImportError: it needs the package x$"):
        load_tokenizer(tmp_path)
