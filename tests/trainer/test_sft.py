"""Supervised fine-tuning: which tokens are trained, what the loss is, where samples come from, and what is refused."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from envhub.agents.models import ModelSource, resolve_model
from envhub.agents.rendering import ChatTemplateRenderer, load_renderer
from envhub.cli.app import run as cli
from envhub.errors import DataError, UserError
from envhub.outcome import Outcome
from envhub.records import RolloutStore, write_rollouts
from envhub.registry import spec
from envhub.rollout import Rollout
from envhub.trainer.optimizer import Optimization
from envhub.trainer.sft.chat import Conversation, read_conversations, record
from envhub.trainer.sft.config import resolve
from envhub.trainer.sft.examples import Batches, Examples, hold_out
from envhub.trainer.sft.run import fine_tune, plan, supervise
from envhub.trainer.sft.sources import play_oracle
from envhub.trainer.strategy import TorchStrategy

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SHORT = {"messages": [{"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "Paris."}]}
TOOLS = {
    "messages": [
        {"role": "system", "content": "be brief <|im_end|>"},
        {"role": "user", "content": "two plus three"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "five"},
        {"role": "assistant", "content": "It is 5."},
        {"role": "user", "content": "thank you"},
    ],
    "tools": [TOOL],
    "source": "other columns are ignored",
}
STRIPPING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return resolve_model("tiny")


@pytest.fixture(scope="module")
def renderer(source: ModelSource) -> ChatTemplateRenderer:
    return load_renderer(source.path)


@pytest.fixture(scope="module")
def with_template(source: ModelSource) -> Callable[[str], ChatTemplateRenderer]:
    from transformers import AutoTokenizer

    def make(template: str) -> ChatTemplateRenderer:
        tokenizer = AutoTokenizer.from_pretrained(source.path)
        tokenizer.chat_template = template
        return ChatTemplateRenderer(tokenizer, "this model")

    return make


@pytest.fixture
def chat(tmp_path: Path) -> Callable[..., Path]:
    def make(*rows: Any) -> Path:
        path = tmp_path / "chat.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return make


@pytest.fixture(scope="module")
def played(source: ModelSource, renderer: ChatTemplateRenderer) -> list[Rollout]:
    found = spec("guess_number")
    return asyncio.run(play_oracle(found, renderer, env_config={"high": 20}, tasks=6, model=str(source.path)))


def settings(**values: Any) -> Any:
    return resolve({"model": "tiny", "tensorboard": False, "learning_rate": 3e-3, **values})


def rows_of_kind(folder: Path, kind: str) -> list[dict[str, Any]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] == kind]


def trained_texts(renderer: ChatTemplateRenderer, conversation: Conversation) -> list[str]:
    """The trained stretches of the samples of a conversation, as text."""
    out: list[str] = []
    for sample in record(renderer, conversation).samples():
        stretch: list[int] = []
        for token, trained in zip([*sample.token_ids, 0], [*sample.mask, False], strict=True):
            if trained:
                stretch.append(token)
            elif stretch:
                out.append(renderer.tokenizer.decode(stretch))
                stretch = []
    return out


def only(path: Path) -> Conversation:
    (conversation,) = read_conversations(path)
    return conversation


# Which tokens are trained


def test_only_what_the_assistant_says_is_trained_and_its_end(renderer, chat):
    conversation = only(chat(TOOLS))
    call = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call><|im_end|>'
    assert trained_texts(renderer, conversation) == [call, "It is 5.<|im_end|>"]
    (sample,) = record(renderer, conversation).samples()
    shown = renderer.tokenizer.decode(sample.token_ids)
    assert shown.endswith("It is 5.<|im_end|>")
    assert "thank you" not in shown and "five" in shown


def test_a_message_of_weight_0_is_shown_and_not_trained(renderer, chat):
    messages = [dict(message) for message in TOOLS["messages"]]
    messages[2]["weight"] = 0
    assert trained_texts(renderer, only(chat({"messages": messages}))) == ["It is 5.<|im_end|>"]


def test_a_written_conversation_has_the_tokens_that_an_executor_records(renderer, played):
    rollout = max(played, key=lambda rollout: len(rollout.turns))
    assert len(rollout.turns) > 2
    messages = rollout.messages[:-1] if rollout.messages[-1].role != "assistant" else rollout.messages
    written = Conversation(messages, trained=tuple(message.role == "assistant" for message in messages))
    (sample,), (recorded,) = record(renderer, written).samples(), rollout.trajectory.samples()
    assert (sample.token_ids, sample.mask) == (recorded.token_ids, recorded.mask)


def test_a_template_that_strips_reasoning_forks_and_trains_every_answer_once(with_template, chat):
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "uno", "reasoning": "spanish"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "dos", "reasoning": "again"},
    ]
    renderer, conversation = with_template(STRIPPING), only(chat({"messages": messages}))
    assert trained_texts(renderer, conversation) == [
        "<think>spanish</think>uno<|im_end|>",
        "<think>again</think>dos<|im_end|>",
    ]
    trajectory = record(renderer, conversation)
    assert trajectory.fork_causes == {"template_strips_reasoning": 1}
    assert "spanish" not in renderer.tokenizer.decode(trajectory.samples()[1].token_ids)


@pytest.mark.parametrize(
    ("template", "said", "problem"),
    [
        (STRIPPING.replace("assistant\\n' }}", "assistant\\n<think>' }}"), {}, "does not write an answer after"),
        (STRIPPING.replace("loop.last", "false"), {"reasoning": "hm"}, "drops the reasoning"),
    ],
)
def test_a_template_that_cannot_write_an_answer_is_refused(with_template, chat, template, said, problem):
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "uno", **said}]
    with pytest.raises(UserError, match=problem):
        record(with_template(template), only(chat({"messages": messages})))


# The loss


def test_the_loss_is_the_mean_nll_of_the_batch_however_it_is_cut(source, renderer, chat):
    from transformers import AutoModelForCausalLM

    examples = Examples(4096)
    for number, conversation in enumerate(read_conversations(chat(SHORT, TOOLS))):
        examples.add(record(renderer, conversation), str(number))
    model = AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32)
    total, tokens = 0.0, 0
    for example in examples.items:
        ids = example.token_ids.long()
        logprobs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(1, ids[1:, None])[:, 0][example.mask[1:]]
        total, tokens = total - float(chosen.detach().sum()), tokens + len(chosen)
    for micro_tokens in (4096, 1):
        strategy = TorchStrategy(source.path, Optimization(micro_tokens=micro_tokens, precision="float32"))
        report = supervise(strategy, examples.items)
        assert report.metrics["loss"] == pytest.approx(total / tokens, rel=1e-4)
        assert report.metrics["action_tokens"] == tokens


@pytest.mark.slow
def test_two_conversations_are_learnt_by_heart_and_the_run_can_be_loaded(chat, tmp_path):
    folder = asyncio.run(
        fine_tune(settings(data=chat(SHORT, TOOLS), steps=40, save_every=15, keep=2, output=tmp_path / "run"))
    )
    losses = [row["nll"] for row in rows_of_kind(folder, "sft")]
    assert losses[0] > 5 and losses[-1] < 0.1 and len(losses) == 40
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step-000030", "step-000040"]
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "config.json").read_text())["steps"] == 40
    loaded = resolve_model(str(folder))
    assert loaded.path == (folder / "checkpoints/step-000040/model").resolve()
    assert loaded.fingerprint != resolve_model("tiny").fingerprint
    with pytest.raises(UserError, match="exists; go on with that supervised run"):
        asyncio.run(fine_tune(settings(data=chat(SHORT), steps=1, output=tmp_path / "run")))


@pytest.mark.slow
def test_an_oracle_teaches_what_holds_for_held_out_tasks(tmp_path):
    config = settings(
        from_oracle="guess_number", env_config={"high": 20}, tasks=24, epochs=6, batch_size=6, eval_fraction=0.25,
        output=tmp_path / "run",
    )  # fmt: skip
    folder = asyncio.run(fine_tune(config))
    before, after = rows_of_kind(folder, "held_out")
    assert (before["step"], after["step"]) == (0, 18)
    assert after["nll"] < before["nll"] / 2 and after["accuracy"] > before["accuracy"] + 0.2
    with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
        assert store.count("oracle") == 24
    again, _, _ = asyncio.run(plan(settings(from_rollouts=folder, min_reward=0.8)))
    kept = [rollout for rollout in played_in(folder) if rollout.reward >= 0.8]
    assert 0 < len(kept) < 24 and len(again.gathered.examples.items) == len(kept)
    ids = {tuple(rollout.trajectory.samples()[0].token_ids) for rollout in kept}
    assert {tuple(example.token_ids.tolist()) for example in again.gathered.examples.items} == ids


def played_in(folder: Path) -> list[Rollout]:
    with RolloutStore(folder / "rollouts.sqlite", read_only=True) as store:
        return list(store.iterate())


# Samples and batches


def test_long_samples_are_cut_and_those_without_an_answer_left_are_dropped(renderer, chat):
    trajectory = record(renderer, only(chat(TOOLS)))
    (sample,) = trajectory.samples()
    first = sample.mask.index(True)
    for most, counts in ((len(sample.mask), (1, 0, 0)), (first + 1, (1, 1, 0)), (first, (0, 0, 1))):
        examples = Examples(most)
        examples.add(trajectory, "a")
        assert (len(examples.items), examples.cut, examples.dropped) == counts
        assert all(len(example.token_ids) == most for example in examples.items)


def test_an_epoch_sees_every_sample_once_and_what_is_held_out_is_never_trained(renderer, chat):
    trajectory, examples = record(renderer, only(chat(SHORT))), Examples(4096)
    for number in range(7):
        examples.add(trajectory, str(number // 2))
    training, held = hold_out(examples.items, 0.3, seed=1)
    assert len({example.key for example in held}) == 2
    assert not {example.key for example in held} & {example.key for example in training}
    batches = Batches(examples.items, 3, seed=0)
    epochs = [[id(e) for step in range(3) for e in batches.at(3 * epoch + step)] for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(map(id, examples.items)) and epochs[0] != epochs[1]
    with pytest.raises(UserError, match="leaves nothing to train on; lower --eval-fraction"):
        hold_out(examples.items, 0.9, seed=1)


# Recorded rollouts


def gathered(rollouts: list[Rollout], path: Path, **values: Any) -> int:
    write_rollouts(path, rollouts)
    planned, _, _ = asyncio.run(plan(settings(from_rollouts=path, **values)))
    return len(planned.gathered.examples.items)


def test_rollouts_are_filtered_by_reward_and_by_outcome(played, tmp_path):
    file = tmp_path / "rollouts.jsonl"
    bad = [replace(played[0], reward=0.0), replace(played[1], outcome=Outcome.ENGINE_FAULT)]
    assert gathered([*bad, *played[2:], played[2]], file) == len(played) - 2
    assert gathered([*bad, *played[2:]], file, min_reward=0.0) == len(played) - 1
    with pytest.raises(DataError, match="none of the 2 .* 1 have no reward above 0, 1 are not scored"):
        gathered(bad, file)


def test_of_a_training_run_only_what_was_trained_is_taken(played, tmp_path):
    with RolloutStore(tmp_path / "rollouts.sqlite") as store:
        for number, rollout in enumerate(played):
            store.add(rollout, phase="eval" if number else "train", step=1)
    planned, _, _ = asyncio.run(plan(settings(from_rollouts=tmp_path)))
    assert len(planned.gathered.examples.items) == 1


def test_records_of_another_tokenizer_are_refused(played, tmp_path):
    file, trajectory = tmp_path / "rollouts.jsonl", played[0].trajectory
    assert gathered([replace(played[0], model="a folder that is gone")], file) == 1
    segments = [replace(trajectory.segments[0], token_ids=(1, 2, 3)), *trajectory.segments[1:]]
    other = replace(played[0], trajectory=replace(trajectory, segments=segments))
    with pytest.raises(DataError, match="played by 'scripted:oracle', whose tokens are not those of tiny-1m"):
        gathered([replace(other, model="scripted:oracle")], file)
    assert gathered([replace(played[0], model="")], file) == 1
    with pytest.raises(DataError, match="played by a model that it does not name, whose tokens"):
        gathered([replace(other, model="")], file)
    segments[0] = replace(segments[0], token_ids=(1, 5000))
    with pytest.raises(DataError, match="has the token id 5000, and tiny-1m knows 1024"):
        gathered([replace(other, trajectory=replace(trajectory, segments=segments))], file)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path, "no rollouts in .*rollouts.jsonl"),
        (lambda path: path / "nothing", "cannot read .*nothing: No such file"),
        (lambda path: _written(path / "rollouts.jsonl", "{}\n"), "line 1: no rollout record"),
        (lambda path: _written(path / "rollouts.sqlite", "SQLite format 3\0 and then nothing"), "rollouts.sqlite"),
    ],
)
def test_what_holds_no_rollouts_is_refused(tmp_path, make, problem):
    with pytest.raises(DataError, match=problem):
        asyncio.run(plan(settings(from_rollouts=make(tmp_path))))


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# Oracles that do not teach

ENVIRONMENTS = '''
from envhub import Environment, GeneratedTasks, SingleTurnEnvironment, Task

class Mute(SingleTurnEnvironment):
    """Has no answer."""
    tasks = GeneratedTasks("mute", lambda rng: Task("say something"))
    rewards = (lambda text: 1.0,)

class Dumb(Environment):
    """Names no right action."""
    tasks = Mute.tasks
    def reset(self, *, seed=None, options=None):
        return "say something", {}
    def step(self, action):
        return "", 1.0, True, False, {}

class Wrong(Mute):
    """Its oracle earns too little."""
    rewards = (lambda text: -1.0,)
    def oracle(self):
        return "<tool_call>{\\"name\\": \\"add\\", \\"arguments\\": {\\"a\\": 1}}</tool_call>"

class Silent(Mute):
    """Its oracle knows nothing."""
    def oracle(self):
        return None
'''


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Wrong", "reward above 0; the highest is -1"),
        ("Silent", "all 2 ended in faults: .*knows no action"),
        ("Nobody", "Nobody"),
    ],
)
def test_an_oracle_that_teaches_nothing_is_refused(tmp_path, name, problem):
    _written(tmp_path / "some.py", ENVIRONMENTS)
    with pytest.raises(UserError, match=problem):
        asyncio.run(plan(settings(from_oracle=f"{tmp_path / 'some.py'}:{name}", tasks=2)))


# What is refused

ASKED = {"role": "user", "content": "x"}
SAID = {"role": "assistant", "content": "y"}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"messages": [', "line 2: not JSON"),
        ("[]", "an object with `messages`, not list"),
        ({"prompt": "x"}, "line 2: no column 'messages' .it has prompt"),
        ({"mesages": []}, "rename 'mesages'"),
        ({"trajectory": {}}, "--from-rollouts"),
        ({"messages": []}, "at least one message"),
        ({"messages": "x"}, "a list of at least one"),
        ({"messages": [ASKED, "y"]}, r"messages\[1\]: a message is an object"),
        (
            {"messages": [ASKED, {"role": "asistant", "content": "y"}]},
            r"messages\[1\]: role .*did you mean 'assistant'",
        ),
        ({"messages": [ASKED, {"content": "y"}]}, "role is one of .*, not None"),
        ({"messages": [ASKED]}, "no assistant message"),
        ({"messages": [ASKED, {**SAID, "weight": 0}]}, "no assistant message"),
        ({"messages": [ASKED, {**SAID, "weight": 0.5}]}, "weight is 0 or 1"),
        ({"messages": [SAID]}, "begins with the assistant"),
        ({"messages": [{**ASKED, "tool_calls": [CALL]}, SAID]}, "only an assistant message"),
        ({"messages": [ASKED, {**SAID, "content": 7}]}, "OpenAI's chat format"),
        ({"messages": [ASKED, {**SAID, "tool_calls": [{"id": "c"}]}]}, "'function' is missing"),
        ({"messages": [ASKED, {**SAID, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}, "not JSON"),
        ({"messages": [ASKED, SAID], "tools": {}}, "tools is a list"),
        ({"messages": [ASKED, SAID], "tools": [{}]}, r"tools\[0\]: 'function' is missing"),
    ],
)
def test_a_bad_line_is_named(chat, row, problem):
    with pytest.raises(DataError, match=f"chat.jsonl, line 2.*{problem}|{problem}") as raised:
        list(read_conversations(chat(SHORT, row)))
    assert "chat.jsonl, line 2" in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "say what to train on"),
        (["--data", "chat.jsonl", "--from-oracle", "guess_number"], "leave out --data or --from-oracle"),
        (["--data", "chat.jsonl", "--steps", "2", "--epochs", "1"], "leave one out"),
        (["--data", "chat.jsonl", "--tasks", "2"], "--tasks goes with --from-oracle, not with --data"),
        (["--data", "chat.jsonl", "--min-reward", "1"], "--min-reward goes with --from-oracle or --from-rollouts"),
        (["--data", "chat.jsonl", "--batch-size", "0"], "batch_size: .*given '?0"),
        (["--data", "chat.jsonl", "--max-tokens", "100000"], "above the context of tiny-1m, 4096 tokens"),
        (["--data", "chat.jsonl", "--max-tokens", "2"], "all 1 samples have no trained token"),
        (["--data", "chat.jsonl", "--eval-fraction", "0.5"], "leaves nothing to train on"),
        (["--data", "chat.jsonl", "--lerning-rate", "1"], "did you mean '--learning-rate'"),
        (["--data", "empty.jsonl"], "empty.jsonl holds no conversation"),
        (["--data", "missing.jsonl"], "cannot read missing.jsonl: No such file"),
        (["--data", "picture.jsonl"], "picture.jsonl, line 1: .*reads no images"),
        (["--from-oracle", "gess_number"], "did you mean 'guess_number'"),
        (["--from-oracle", "some.py:Dumb"], "has no oracle to learn from"),
        (["--from-oracle", "guess_number", "--split", "trian"], "no split 'trian'"),
        (["--from-oracle", "guess_number", "--parser", "hermse"], "hermes"),
    ],
)
def test_a_mistake_is_answered_in_one_line(chat, tmp_path, monkeypatch, capsys, arguments, problem):
    monkeypatch.chdir(tmp_path)
    chat(SHORT)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    picture = {"messages": [{"role": "user", "content": [image]}, SAID]}
    _written(tmp_path / "picture.jsonl", json.dumps(picture))
    _written(tmp_path / "empty.jsonl", "\n")
    _written(tmp_path / "some.py", ENVIRONMENTS)
    assert cli(["sft", "--model", "tiny", *arguments]) == 2
    error = capsys.readouterr().err
    assert re.search(problem, error) and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_counts_the_samples_and_trains_nothing(chat, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli(["sft", "--model", "tiny", "--data", str(chat(SHORT, TOOLS)), "--epochs", "3", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["epochs"] == 3
    assert "2 conversations" in shown.err and "3 steps" in shown.err
    assert not (tmp_path / "runs").exists()
