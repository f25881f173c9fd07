"""Models that cannot be loaded: what is said of a damaged folder, and of what is not the folder's fault."""

from pathlib import Path

import pytest
import torch
import transformers

from envhub.agents.engines import checkpoints
from envhub.agents.engines.loading import load_causal_model
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
