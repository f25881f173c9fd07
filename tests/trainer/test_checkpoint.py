"""Checkpoints that disks and kills have damaged: every one is refused by name, with what to do instead."""

import contextlib
import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from envhub.agents.engines import checkpoints
from envhub.agents.session import prepare_agent, started
from envhub.errors import UserError
from envhub.ledger import Ledger
from envhub.trainer import checkpoint
from envhub.trainer.algorithms import GRPO
from envhub.trainer.batch import Rows
from envhub.trainer.optimizer import Optimization
from envhub.trainer.origin import Origin
from envhub.trainer.strategy import TorchStrategy


@pytest.fixture(scope="module")
def strategy(tiny_path: Path) -> TorchStrategy:
    """A strategy that has taken a step. No test changes it: what is refused is not taken up."""
    made = TorchStrategy(tiny_path, Optimization(learning_rate=1e-3), device="cpu")
    mask = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    rows = Rows.bare(torch.tensor([[5, 6, 7, 8]]), mask, torch.zeros(1, 4), torch.tensor([4]))
    rows.advantages, rows.weights = torch.ones(1, 4), torch.full((1, 4), 0.5)
    assert not made.step(rows, GRPO, 1.0, None, None).skipped
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, strategy: TorchStrategy, tiny_path: Path) -> Path:
    """A folder of two checkpoints."""
    folder, ledger = tmp_path_factory.mktemp("run") / "checkpoints", Ledger()
    ledger.issue(8)
    ledger.drop("environment", 8)
    for step in (3, 12):
        place = checkpoint.Place(position=4 * step, seed=1)
        meta = checkpoint.Meta(step=step, sampler=place, ledger=ledger.to_dict(), version=step)
        checkpoint.save(folder, strategy, AutoTokenizer.from_pretrained(tiny_path), meta, keep=2)
    return folder


@pytest.fixture
def saved(tmp_path: Path, whole: Path) -> checkpoint.Checkpoint:
    """The later one of two checkpoints, to be damaged."""
    shutil.copytree(whole, tmp_path / "checkpoints")
    return checkpoint.finished(tmp_path / "checkpoints")[-1]


def refused(saved: checkpoint.Checkpoint, file: str, do: Callable[[], object], said: str = "") -> None:
    """Doing it names the file, the damage, and the earlier checkpoint; without one, a new run."""
    with pytest.raises(UserError, match=rf"step-000012/{file}(?s:.*){said}(?s:.*)step-000003"):
        do()
    shutil.rmtree(saved.path.parent / "step-000003")
    with pytest.raises(UserError, match=rf"step-000012/{file}(?s:.*)(new run|save it again)"):
        do()


def test_a_whole_checkpoint_is_taken_up(saved: checkpoint.Checkpoint, strategy: TorchStrategy, tiny_path: Path):
    meta = saved.meta()
    assert (meta.step, meta.version, meta.sampler.position, meta.counts().dropped["environment"]) == (12, 12, 48, 8)
    assert saved.source().path == saved.model.resolve()
    fresh = TorchStrategy(tiny_path, Optimization(), device="cpu")
    saved.restore(fresh)
    before, after = (item.stepper.optimizers[0].state_dict()["state"] for item in (strategy, fresh))
    assert before.keys() == after.keys() and before
    assert all(torch.equal(before[key]["exp_avg_sq"], after[key]["exp_avg_sq"]) for key in before)
    assert fresh.stepper.learning_rate == Optimization().learning_rate


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "{}", "\x00" * 50, "[" * 100_000, '{"step": 12}', '{"step": 12, "version": NaN}', "é"],
)
def test_a_description_that_is_none_is_refused(saved: checkpoint.Checkpoint, text: str):
    (saved.path / "checkpoint.json").write_bytes(text.encode("latin-1"))
    refused(saved, "checkpoint.json", saved.meta)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": 11}, "step 11"),
        ({"step": "12"}, "step"),
        ({"version": -1}, "version"),
        ({"version": True}, "version"),
        ({"version": None}, "version"),
        ({"sampler": 5}, "sampler"),
        ({"sampler": {"seed": 1}}, "sampler.position"),
        ({"sampler": {"seed": 1, "position": 1.5}}, "sampler.position"),
        ({"ledger": {}}, "ledger"),
        ({"ledger": {"issued": 3, "dropped": {}, "retried": {}}}, "ledger"),
        ({"ledger": {"issued": "3", "dropped": {}, "retried": {}}}, "ledger"),
        ({"ledger": {"issued": 0, "dropped": 0, "retried": {}}}, "ledger"),
        ({"ledger": {"issued": 0, "dropped": {}, "retried": {}, "used": {}}}, "ledger"),
    ],
)
def test_a_description_with_wrong_values_is_refused(saved: checkpoint.Checkpoint, change: dict[str, Any], said: str):
    file = saved.path / "checkpoint.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    refused(saved, "checkpoint.json", saved.meta, said)


def test_a_description_that_says_something_twice_is_refused(saved: checkpoint.Checkpoint):
    file = saved.path / "checkpoint.json"
    file.write_text(file.read_text().replace("{", '{"version": 1,', 1))
    refused(saved, "checkpoint.json", saved.meta, "'version' twice")


def test_a_description_without_one_of_its_keys_is_refused(saved: checkpoint.Checkpoint):
    file = saved.path / "checkpoint.json"
    whole = json.loads(file.read_text())
    for key in ("step", "sampler", "ledger", "version"):
        file.write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
        with pytest.raises(UserError, match=f"checkpoint.json: {key}"):
            saved.meta()


def wrong_states() -> list[tuple[str, Callable[[dict[str, Any]], Any]]]:
    def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], Any]:
        def edited(state: dict[str, Any]) -> Any:
            change(state)
            return state

        return edited

    def moments(state: dict[str, Any]) -> dict[Any, Any]:
        return state["stepper"]["optimizers"][0]

    return [
        ("list", lambda state: [state]),
        ("tensor", lambda state: torch.zeros(3)),
        ("none", lambda state: None),
        ("no optimizer", lambda state: {"torch_rng": state["torch_rng"]}),
        ("no generator", lambda state: {"stepper": state["stepper"]}),
        ("optimizer", lambda state: {**state, "stepper": 3}),
        ("generator's type", lambda state: {**state, "torch_rng": "x"}),
        ("generator's size", lambda state: {**state, "torch_rng": torch.zeros(3, dtype=torch.uint8)}),
        ("generator's dtype", lambda state: {**state, "torch_rng": torch.zeros(5056)}),
        ("no schedule", edit(lambda state: state["stepper"].pop("schedule"))),
        ("no moments", edit(lambda state: state["stepper"].pop("optimizers"))),
        ("moments' type", edit(lambda state: state["stepper"].update(optimizers=[[]]))),
        ("unknown parameter", edit(lambda state: moments(state).update({10_000: {}}))),
        ("parameter's name", edit(lambda state: moments(state).update({"x": {}}))),
        ("parameter's type", edit(lambda state: moments(state).update({0: 3}))),
        ("no moment", edit(lambda state: moments(state)[0].pop("exp_avg"))),
        ("moment's shape", edit(lambda state: moments(state)[0].update(exp_avg=torch.zeros(1)))),
        ("moment's type", edit(lambda state: moments(state)[0].update(exp_avg_sq=3.0))),
        ("moment's value", edit(lambda state: moments(state)[0]["exp_avg"].fill_(torch.nan))),
        ("another critic", lambda state: {**state, "critic": {}}),
        ("a step of the schedule", edit(lambda state: state["stepper"].update(schedule=-1))),
        ("step", edit(lambda state: moments(state)[0].update(step="x"))),
    ]


@pytest.mark.parametrize(("name", "change"), wrong_states(), ids=[name for name, _ in wrong_states()])
def test_a_state_that_does_not_fit_is_refused(
    saved: checkpoint.Checkpoint, strategy: TorchStrategy, name: str, change: Callable[[Any], Any]
):
    file = saved.path / "trainer.pt"
    torch.save(change(torch.load(file, weights_only=True)), file)
    refused(saved, "trainer.pt", lambda: saved.restore(strategy))


class Bomb:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("bomb"),)


def test_a_state_never_runs_code(
    saved: checkpoint.Checkpoint, strategy: TorchStrategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    torch.save({"stepper": Bomb(), "torch_rng": torch.get_rng_state()}, saved.path / "trainer.pt")
    refused(saved, "trainer.pt", lambda: saved.restore(strategy))
    assert not (tmp_path / "bomb").exists()


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of protocols that the damage seems to name
def test_a_state_with_damaged_bytes_is_refused_or_whole(saved: checkpoint.Checkpoint, strategy: TorchStrategy):
    file = saved.path / "trainer.pt"
    whole, rng = file.read_bytes(), random.Random(0)
    for cut in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(UserError, match="step-000012/trainer.pt"):
            saved.restore(strategy)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(8):
            damaged[rng.randrange(2000)] = rng.randrange(256)
        file.write_bytes(damaged)
        with contextlib.suppress(UserError):  # and no other error
            saved.restore(strategy)
    file.unlink()
    with pytest.raises(UserError, match="step-000012/trainer.pt"):
        saved.restore(strategy)


def test_every_file_that_is_cut_off_or_missing_is_named(saved: checkpoint.Checkpoint):
    saved.check()
    files = [path for path in saved.path.rglob("*") if path.is_file()]
    assert len(files) >= 6
    for file in files:
        whole = file.read_bytes()
        for cut in (whole[:-1], whole[: len(whole) // 2], b""):
            file.write_bytes(cut)
            with pytest.raises(UserError, match=f"step-000012/{file.relative_to(saved.path)}.*step-000003"):
                saved.check()
        if file.name != checkpoints.META:  # without it there is no checkpoint
            file.unlink()
            with pytest.raises(UserError, match=f"step-000012/{file.relative_to(saved.path)}: No such file"):
                saved.check()
        file.write_bytes(whole)
    saved.check()


ORIGIN = Origin(env="a", env_config={}, split="train", seed=0, algo="ppo", kl_to="", optimizer="adamw")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"env": "b"}, "its env is 'a', the run's 'b'"),
        ({"env_config": {"x": 1}}, "its env_config is {}, the run's {'x': 1}"),
        ({"split": "eval"}, "its split is 'train', the run's 'eval'"),
        ({"seed": 1}, "its seed is 0, the run's 1"),
        ({"algo": "grpo"}, "its algo is 'ppo', the run's 'grpo'"),
        ({"optimizer": "muon"}, "its optimizer is 'adamw', the run's 'muon'"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused(
    saved: checkpoint.Checkpoint, change: dict[str, Any], said: str
):
    file = saved.path / "checkpoint.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "origin": ORIGIN.model_dump()}))
    saved.refuse_another(ORIGIN)
    with pytest.raises(UserError) as refusal:
        saved.refuse_another(ORIGIN.model_copy(update=change))
    assert str(refusal.value).startswith(
        f"the checkpoint {saved.path} is of another configuration: {said}; set that back"
    )


def test_a_checkpoint_of_another_model_is_refused(saved: checkpoint.Checkpoint, strategy: TorchStrategy):
    file = saved.path / "checkpoint.json"
    file.write_text(file.read_text().replace(strategy.trained(), "5 values in 1 tensors"))
    with pytest.raises(
        UserError, match="is of another model: 5 values in 1 tensors are trained in it, and .* in this run"
    ):
        saved.restore(strategy)


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def with_header(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


DAMAGES: dict[str, Callable[[Path], bytes]] = {
    "empty": lambda file: b"",
    "cut in its length": lambda file: file.read_bytes()[:5],
    "cut in its header": lambda file: file.read_bytes()[:100],
    "cut in its data": lambda file: file.read_bytes()[:-10],
    "no JSON": lambda file: struct.pack("<Q", 4) + b"\xff\xff\xff\xff",
    "huge header": lambda file: struct.pack("<Q", 2**63) + b"{}",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_are_cut_off_are_refused(saved: checkpoint.Checkpoint, damage: str):
    file = saved.model / "model.safetensors"
    file.write_bytes(DAMAGES[damage](file))
    refused(saved, "model", saved.source, "model.safetensors")


@pytest.mark.parametrize(
    ("change", "said"),
    [({"dtype": "F99"}, "F99"), ({"dtype": "F64"}, "shape"), ({"shape": [1, 2]}, "shape"), ({"shape": [-1]}, "-1")],
)
async def test_weights_with_a_damaged_header_are_refused_by_engine_and_trainer(
    saved: checkpoint.Checkpoint, change: dict[str, Any], said: str
):
    file = saved.model / "model.safetensors"
    header, data = header_of(file)
    name = sorted(header)[3]
    file.write_bytes(with_header({**header, name: {**header[name], **change}}, data))

    with pytest.raises(UserError, match=f"step-000012/model/model.safetensors is damaged.*{said}.*step-000003"):
        async with started(prepare_agent(str(saved.path), "transformers")):
            pass
    refused(
        saved, "model/model.safetensors", lambda: TorchStrategy(saved.model, Optimization(), device="cpu"), "damaged"
    )


async def test_weights_that_lack_a_tensor_are_refused_not_made_up(saved: checkpoint.Checkpoint):
    file = saved.model / "model.safetensors"
    header, data = header_of(file)
    name = sorted(header)[3]
    header[f"{name}x"] = header.pop(name)
    file.write_bytes(with_header(header, data))
    with pytest.raises(UserError, match=f"step-000012/model: its weights lack 1 tensors, such as '{name}'"):
        async with started(prepare_agent(str(saved.path), "transformers")):
            pass
    with pytest.raises(UserError, match="lack 1 tensors.*use the earlier checkpoint .*step-000003"):
        TorchStrategy(saved.model, Optimization(), device="cpu")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "x"),
        ("hidden_act", "foo"),
        ("num_attention_heads", 0),
        ("vocab_size", 10**30),
        ("model_type", 3),
    ],
)
def test_a_damaged_configuration_of_the_model_is_refused(saved: checkpoint.Checkpoint, key: str, value: object):
    file = saved.model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(UserError, match="cannot load .*step-000012/model: (?s:.*)use the earlier checkpoint"):
        TorchStrategy(saved.model, Optimization(), device="cpu")
