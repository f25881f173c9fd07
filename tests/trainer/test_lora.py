"""Adapters: what is trained, what the engine gets, what a checkpoint holds, and how one becomes a whole model."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from envhub.agents.engines import make_engine
from envhub.agents.engines.transformers_engine import TransformersEngine
from envhub.agents.models import resolve_model
from envhub.cli.app import run as command_line
from envhub.cli.commands.train import what_next
from envhub.errors import UserError
from envhub.trainer import checkpoint, config, lora
from envhub.trainer.alarms import Canary
from envhub.trainer.algorithms import PPO, RLOO
from envhub.trainer.batch import Rows, build_rows
from envhub.trainer.lora import Adapter, Lora
from envhub.trainer.merging import merge
from envhub.trainer.model import load_model
from envhub.trainer.optimizer import Optimization
from envhub.trainer.run import train
from envhub.trainer.sft import config as sft_config
from envhub.trainer.strategy import TorchStrategy
from envhub.trainer.transfer import make_transfer

OPTIONS = Optimization(learning_rate=1e-2, precision="float32", lora=Lora(4, 8.0))


@pytest.fixture
def rows(make_rollout) -> Rows:
    prompt = list(range(5, 25))
    return build_rows(
        [make_rollout([(prompt, [30, 31 + i]), ([9], [8, 7])], float(i % 2), f"g{i // 2}") for i in range(4)], RLOO
    )


def stepped(path: Path, rows: Rows, steps: int = 2, options: Optimization = OPTIONS) -> TorchStrategy:
    strategy = TorchStrategy(path, options, reference=path, device="cpu")
    for _ in range(steps):
        assert not strategy.step(rows, RLOO, 1.0, None, None).skipped
    return strategy


def matrices(strategy: TorchStrategy) -> dict[str, Tensor]:
    assert strategy.adapter is not None
    return strategy.adapter.tensors


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def test_only_the_adapter_is_trained_and_the_base_stays_bit_for_bit(tiny_path: Path, rows: Rows):
    strategy = stepped(tiny_path, rows)
    base = dict(load_model(tiny_path, "cpu").state_dict())
    now = {name.replace(".base_layer.", "."): value for name, value in strategy.model.state_dict().items()}
    assert all(torch.equal(value, now[name]) for name, value in base.items())
    own = matrices(strategy)
    assert len(strategy.stepper.parameters) == len(own) == 56
    assert {tensor.dtype for tensor in own.values()} == {torch.float32}
    moments = strategy.stepper.state()["optimizers"]
    assert len(moments) == 1 and len(moments[0]) == len(own)
    assert strategy.trained().startswith(f"{sum(t.numel() for t in own.values())} values in 56 tensors")
    assert strategy._scorer.splits and strategy._scorer.decoder.shares


def test_the_seed_alone_decides_how_an_adapter_begins(tiny_path: Path):
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(made))
        made.append(Adapter(load_model(tiny_path, "cpu"), Lora(4, 8.0, seed=seed), tiny_path).tensors)
    assert equal(made[0], made[1]) and not equal(made[0], made[2])


def test_the_reference_is_the_model_without_adapter_until_it_is_refreshed(tiny_path: Path, rows: Rows):
    plain = TorchStrategy(tiny_path, replace(OPTIONS, lora=None), device="cpu").score(rows, 1.0)
    strategy = stepped(tiny_path, rows, steps=0)
    assert torch.equal(strategy.score(rows, 1.0), plain)
    strategy.step(rows, RLOO, 1.0, None, None)
    assert torch.equal(strategy.score(rows, 1.0, reference=True), plain)
    moved = strategy.score(rows, 1.0)
    assert not torch.equal(moved, plain) and "reference" not in strategy.state()
    strategy.refresh_reference()
    strategy.step(rows, RLOO, 1.0, None, None)
    assert torch.equal(strategy.score(rows, 1.0, reference=True), moved)
    assert not torch.equal(strategy.score(rows, 1.0), moved)
    other = TorchStrategy(tiny_path, OPTIONS, reference=tiny_path, device="cpu")
    other.load_state(strategy.state())
    assert torch.equal(other.score(rows, 1.0, reference=True), moved)
    with pytest.raises(ValueError, match="adapter: it is not of these 28 layers"):
        other.load_state({**strategy.state(), "reference": {}})


def test_another_reference_is_a_model_of_its_own(tiny_path: Path, rows: Rows, tmp_path: Path):
    other = load_model(tiny_path, "cpu")
    other.model.layers[0].mlp.up_proj.weight.data.mul_(2)
    other.save_pretrained(tmp_path)
    strategy = TorchStrategy(tiny_path, OPTIONS, reference=tmp_path, device="cpu")
    expected = TorchStrategy(tmp_path, replace(OPTIONS, lora=None), device="cpu").score(rows, 1.0)
    strategy.step(rows, RLOO, 1.0, None, None)
    assert torch.equal(strategy.score(rows, 1.0, reference=True), expected)
    strategy.refresh_reference()
    assert torch.allclose(strategy.score(rows, 1.0, reference=True), strategy.score(rows, 1.0), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "how", "options"),
    [
        ("transformers", "memory", {}),
        ("transformers", "folder", {}),
        pytest.param(
            "vllm",
            "memory",
            {"kv_cache_gib": 0.25, "max_context": 256},
            marks=[pytest.mark.slow, pytest.mark.timeout(600)],
        ),
    ],
)
async def test_the_engine_gets_the_merged_weights_of_the_adapted_layers(
    tiny_path: Path, rows: Rows, name: str, how: str, options: dict[str, object], tmp_path: Path
):
    pytest.importorskip(name)
    engine = make_engine(name, str(tiny_path), options={"dtype": "float32", **options})
    strategy = stepped(tiny_path, rows, steps=0)
    transfer = make_transfer(how, tmp_path / "transfer")
    await engine.start()
    try:
        canary = Canary(engine, strategy, list(range(5, 45)), 1.0)
        await canary.check(0)
        for _ in range(3):
            strategy.step(rows, RLOO, 1.0, None, None)
        assert await canary.difference() > 0.05
        await transfer.send(strategy, engine, 1)
        assert await canary.check(1) < (1e-4 if name == "transformers" else 5e-3)  # vLLM's kernels: 1e-3 from the start
    finally:
        await engine.close()
    part, whole = strategy.named_tensors(whole=False), strategy.named_tensors()
    assert len(part) == 28 and all(torch.equal(value, whole[name]) for name, value in part.items())
    assert whole.keys() == load_model(tiny_path, "cpu").state_dict().keys()
    if how == "folder":
        assert load_file(tmp_path / "transfer" / "model.safetensors").keys() == part.keys()


def test_an_engine_that_takes_no_part_gets_the_whole_model(tiny_path: Path, rows: Rows):
    class Picky(TransformersEngine):
        takes_part = False
        given = 0

        async def update_weights(self, update) -> None:
            self.given, self.weight_version = len(update.tensors), update.version

    engine, strategy = Picky(str(tiny_path)), stepped(tiny_path, rows, steps=0)
    asyncio.run(make_transfer("memory", Path()).send(strategy, engine, 1))
    assert engine.given == len(load_model(tiny_path, "cpu").state_dict())


def test_computing_activations_again_changes_no_gradient(tiny_path: Path, rows: Rows):
    found = []
    for again in (False, True):
        strategy = stepped(tiny_path, rows, steps=1, options=replace(OPTIONS, gradient_checkpointing=again))
        found.append(strategy.stepper.state()["optimizers"][0])  # after one step, moments are those of the gradient
    assert found[0].keys() == found[1].keys() and len(found[0]) == 56
    largest = max(float(one["exp_avg"].abs().max()) for one in found[0].values())
    apart = max(float((one["exp_avg"] - found[1][key]["exp_avg"]).abs().max()) for key, one in found[0].items())
    assert largest > 0 and apart < 1e-4 * largest


def test_named_layers_alone_are_adapted(tiny_path: Path, rows: Rows):
    options = replace(OPTIONS, lora=Lora(4, 8.0, ("q_proj", "layers.1.mlp.up_proj")))
    part = TorchStrategy(tiny_path, options, device="cpu").named_tensors(whole=False)
    assert {name.split("model.layers.")[1] for name in part} == {
        *(f"{layer}.self_attn.q_proj.weight" for layer in range(4)), "1.mlp.up_proj.weight",
    }  # fmt: skip


def test_the_critic_has_an_adapter_of_its_own_and_a_head(tiny_path: Path, rows: Rows):
    strategy = TorchStrategy(tiny_path, OPTIONS, critic=OPTIONS, device="cpu")
    rows.values = strategy.values(rows)
    rows.returns = rows.mask.clone()
    before = {name: tensor.clone() for name, tensor in matrices(strategy).items()}
    strategy.step_critic(rows, PPO)
    strategy.step_critic(rows, PPO)
    state = strategy.state()
    assert len(state["critic"]["model"]) == 56 + 2 and {"head.weight", "head.bias"} <= state["critic"]["model"].keys()
    assert equal(before, matrices(strategy))
    other = TorchStrategy(tiny_path, OPTIONS, critic=OPTIONS, device="cpu")
    other.load_state(state)
    assert torch.equal(other.values(rows), strategy.values(rows)) and strategy.values(rows).abs().max() > 0
    del state["critic"]["model"]["head.bias"]
    with pytest.raises(ValueError, match=r"critic: it lacks head\.bias"):
        other.load_state(state)


# Whole runs, and what becomes of their checkpoints.


def run(output: Path, env: str, resume: Path | None = None, **values: object) -> Path:
    settings = {
        "preset": "test", "env": env, "output": output, "tensorboard": False, "eval_tasks": 0, "algo": "ppo",
        "kl_coef": 0.01, "reference_every": 1, "lora_rank": 4, "max_turn_tokens": 12, "save_every": 1, **values,
    }  # fmt: skip
    return asyncio.run(train(config.resolve(settings), resume=resume))


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory, letters_source: str) -> str:
    file = tmp_path_factory.mktemp("env") / "letters.py"
    file.write_text(letters_source)
    return f"{file}:Letters"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, letters: str) -> Path:
    """A run of two steps with both checkpoints."""
    return run(tmp_path_factory.mktemp("runs") / "whole", letters, steps=2, engine_options={"gather_seconds": 0.2})


@pytest.fixture(scope="module")
def merged(finished: Path) -> Path:
    return merge(finished)


@pytest.fixture
def adapter(finished: Path, tmp_path: Path) -> Path:
    """The folder of the run's last adapter, to be damaged."""
    return Path(shutil.copytree(finished / "checkpoints/step-000002/model", tmp_path / "adapter"))


@pytest.mark.slow
def test_a_checkpoint_holds_the_adapter_and_no_whole_model(finished: Path, tiny_path: Path):
    folder = finished / "checkpoints/step-000002/model"
    assert not (folder / "config.json").exists() and not (folder / "model.safetensors").exists()
    assert (folder / "tokenizer.json").is_file() and (folder / "chat_template.jinja").is_file()
    described = json.loads((folder / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"], described["peft_type"]) == (4, 8.0, "LORA")
    assert described["base_model_name_or_path"] == str(tiny_path)
    from peft import PeftModel

    read = PeftModel.from_pretrained(load_model(tiny_path, "cpu"), str(folder))
    found = dict(read.named_parameters())
    for name, value in load_file(folder / "adapter_model.safetensors").items():
        assert torch.equal(found[name.replace(".weight", ".default.weight")], value)


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_adapter_of_one_that_was_not(finished: Path, letters: str, tmp_path: Path):
    stopped = Path(shutil.copytree(finished, tmp_path / "stopped"))
    shutil.rmtree(stopped / "checkpoints" / "step-000002")
    run(stopped, letters, resume=stopped, steps=2, engine_options={"gather_seconds": 0.2})
    place = "checkpoints/step-000002/model/adapter_model.safetensors"
    assert equal(load_file(finished / place), load_file(stopped / place))
    states = [torch.load(folder / "checkpoints/step-000002/trainer.pt") for folder in (finished, stopped)]
    assert equal(*(state["critic"]["model"] for state in states))
    assert equal(*(state["reference"] for state in states))
    one = load_file(finished / "checkpoints/step-000001/model/adapter_model.safetensors")
    assert not equal(one, load_file(finished / place))


@pytest.mark.slow
def test_the_merged_model_is_the_adapted_one(finished: Path, merged: Path, tiny_path: Path, rows: Rows):
    assert merged == finished.with_name("whole-merged")
    adapted = TorchStrategy(tiny_path, OPTIONS, device="cpu")
    base = adapted.score(rows, 1.0)
    adapted.load_adapter(finished / "checkpoints/step-000002/model")
    whole = TorchStrategy(resolve_model(str(merged)).path, replace(OPTIONS, lora=None), device="cpu")
    assert torch.allclose(whole.score(rows, 1.0), adapted.score(rows, 1.0), atol=1e-5)
    assert not torch.allclose(whole.score(rows, 1.0), base, atol=1e-3)


@pytest.mark.slow
def test_the_merged_model_is_evaluated(merged: Path, letters: str, tmp_path: Path):
    arguments = ["eval", letters, "--model", str(merged), "--engine", "transformers", "--tasks", "1"]
    assert command_line([*arguments, "--max-turn-tokens", "4", "--output", str(tmp_path / "run")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", "checkpoints/step-000001", "checkpoints/step-000002/model"])
def test_an_adapter_is_no_model_and_the_remedy_is_said(finished: Path, place: str):
    with pytest.raises(UserError, match=r"holds a LoRA adapter: merge it .*\(envhub merge .*/whole\)"):
        resolve_model(str(finished / place))


@pytest.mark.slow
def test_what_cannot_be_merged_is_refused(finished: Path, merged: Path, tmp_path: Path, capsys):
    before = sorted(path.name for path in finished.parent.iterdir())
    for arguments, said in (
        ([str(finished)], f"{merged} exists already; name another folder"),
        ([str(merged)], "is a whole model already, with nothing to merge: use it as it is"),
        ([str(tmp_path / "none")], "there is no folder"),
        ([str(tmp_path)], "holds no checkpoint and no adapter"),
        ([str(finished), str(tmp_path / "a"), "--base", "tiny:3m"], "it is another model, or was changed since"),
        ([str(finished), str(tmp_path / "a"), "--base", str(tmp_path / "b")], "name it with --base"),
    ):
        assert command_line(["merge", *arguments]) == 2
        err = capsys.readouterr().err
        assert err.startswith("envhub: ") and said in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir()) and before == sorted(path.name for path in finished.parent.iterdir())


def of_another_base(folder: Path) -> None:
    file = folder / lora.BASE
    file.write_text(json.dumps({**json.loads(file.read_text()), "fingerprint": "0" * 16}))


def without_its_base(folder: Path) -> None:
    file = folder / lora.BASE
    file.write_text(json.dumps({**json.loads(file.read_text()), "path": str(folder / "gone")}))


def without_a_matrix(folder: Path) -> None:
    tensors = load_file(folder / lora.WEIGHTS)
    save_file({name: value for name, value in tensors.items() if "layers.3" not in name}, folder / lora.WEIGHTS)


def with_an_alpha_for_a_layer(folder: Path) -> None:
    file = folder / lora.SETTINGS
    file.write_text(json.dumps({**json.loads(file.read_text()), "alpha_pattern": {"q_proj": 64}}))


def cut(folder: Path) -> None:
    (folder / lora.WEIGHTS).write_bytes((folder / lora.WEIGHTS).read_bytes()[:-100])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (of_another_base, "fingerprint 0000000000000000"),
        (without_its_base, "no such folder.*--base"),
        (without_a_matrix, "it is not of these 28 layers"),
        (with_an_alpha_for_a_layer, "has alpha_pattern .*, which is not merged here"),
        (cut, f"{lora.WEIGHTS} cannot be read"),
        (lambda folder: (folder / lora.SETTINGS).write_text("{}"), "no plain LoRA"),
        (lambda folder: (folder / lora.SETTINGS).write_text("{"), f"{lora.SETTINGS} is no JSON"),
        (lambda folder: (folder / lora.BASE).write_text("{}"), f"{lora.BASE} cannot be read"),
    ],
)
def test_a_damaged_adapter_is_not_merged(adapter: Path, damage: Callable[[Path], object], said: str):
    damage(adapter)
    with pytest.raises(UserError, match=said):
        merge(adapter)
    assert [path.name for path in adapter.parent.iterdir()] == ["adapter"]


@pytest.mark.slow
def test_a_run_goes_on_from_its_own_adapter_only(finished: Path, tiny_path: Path, tmp_path: Path):
    folder = Path(shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints"))
    saved = checkpoint.finished(folder)[-1]
    for options, said in (
        (replace(OPTIONS, lora=Lora(4, 4.0)), r"has the lora_alpha 8\.0, and the run 4\.0"),
        (replace(OPTIONS, lora=Lora(2, 8.0)), "is of another model"),
        (replace(OPTIONS, lora=None), "is of another model"),
    ):
        with pytest.raises(UserError, match=said):
            saved.restore(TorchStrategy(tiny_path, options, device="cpu"))
    strategy = TorchStrategy(tiny_path, OPTIONS, device="cpu")
    of_another_base(saved.model)
    with pytest.raises(UserError, match="it is another model, or was changed since"):
        saved.restore(strategy)
    shutil.copy(finished / "checkpoints/step-000002/model" / lora.BASE, saved.model)
    cut(saved.model)
    with pytest.raises(UserError, match=rf"is damaged: .*{lora.WEIGHTS} cannot be read.*step-000001"):
        saved.restore(strategy)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lora_alpha": 8}, "lora_alpha is of an adapter, and there is none: set lora_rank above 0"),
        ({"lora_targets": "q_proj"}, "lora_targets is of an adapter, and there is none"),
        ({"lora_rank": 4, "lora_targets": " , "}, "lora_targets names no layer"),
        ({"lora_rank": 4, "lora_alpha": 0}, "lora_alpha"),
        ({"lora_rank": -1}, "lora_rank"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, object], said: str):
    with pytest.raises(UserError, match=said):
        config.resolve({"env": "guess_number", "preset": "test", **given})
    with pytest.raises(UserError, match=said):
        sft_config.resolve({"from_oracle": "guess_number", **given})


def test_muon_is_refused():
    with pytest.raises(UserError, match="muon makes the update of a whole matrix orthogonal"):
        config.resolve({"env": "guess_number", "preset": "test", "lora_rank": 4, "optimizer": "muon"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lora_rank": 4096}, r"lora_rank 4096 is above the smaller side of model\.layers\.0\S+ \(\d+ x \d+\)"),
        ({"lora_rank": 4, "lora_targets": "q_prok"}, r"'q_prok' matches no layer .*; did you mean 'q_proj'\?"),
        ({"lora_rank": 4, "lora_targets": "q_proj,lm_head"}, "'lm_head' is no linear layer of the model's decoder"),
        (
            {"lora_rank": 4, "lora_targets": "norm"},
            "'norm' is no linear layer of the model's decoder; there are down_proj",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_before_anything_starts(
    given: dict[str, object], said: str, tmp_path: Path
):
    values = {"env": "guess_number", "preset": "test", "output": tmp_path / "run", **given}
    with pytest.raises(UserError, match=said):
        asyncio.run(train(config.resolve(values)))
    assert not (tmp_path / "run").exists()


def test_supervised_runs_train_adapters_too(tiny_path: Path):
    settings = sft_config.resolve(
        {"from_oracle": "guess_number", "lora_rank": 4, "lora_targets": "q_proj, v_proj", "seed": 3}
    )
    assert Optimization.of(settings, 10).lora == Lora(4, 8.0, ("q_proj", "v_proj"), 3)
    assert Optimization.of(sft_config.resolve({"from_oracle": "guess_number"}), 10).lora is None


@pytest.mark.parametrize(
    ("rank", "evaluates"),
    [
        (0, "next: envhub eval guess_number --model runs/a/checkpoints/step-000003\n"),
        (4, "next: envhub merge runs/a runs/a-merged && envhub eval guess_number --model runs/a-merged\n"),
    ],
)
def test_the_command_that_evaluates_an_adapter_merges_it_first(rank: int, evaluates: str):
    finished = config.TrainConfig(env="guess_number", algo="rloo", lora_rank=rank, steps=3)
    assert what_next(finished, Path("runs/a")).startswith(evaluates)
