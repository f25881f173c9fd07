"""A prompt that rows share is computed once: the same logprobs and gradients, from less work."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, DynamicCache

from envhub.trainer.algorithms import PPO, RLOO
from envhub.trainer.arithmetic import Arithmetic
from envhub.trainer.batch import assign, build_rows, partition, token_rows
from envhub.trainer.critic import Critic
from envhub.trainer.decoder import passes
from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import TorchStrategy

LONG = list(range(20, 50))


@pytest.fixture
def rollouts(make_rollout):
    """Two groups with long prompts of different lengths, one of two turns, and a rollout that shares with none."""
    out = [make_rollout([(LONG, [5 + i] * (i + 1))], float(i % 2), "a") for i in range(4)]
    out += [make_rollout([(LONG[:15], [9, 8 + i]), ([3, 4], [7] * (i + 1))], float(i), "b") for i in range(3)]
    return [*out, make_rollout([([3, 4], [5, 6])], 1.0, "c")]


def make(path, *, shares: bool, micro_tokens: int = 4096) -> TorchStrategy:
    strategy = TorchStrategy(path, Optimization(micro_tokens=micro_tokens, precision="float32", clip_norm=0))
    assert strategy._scorer.decoder.shares
    strategy._scorer.decoder.shares = shares
    return strategy


def gradients(strategy: TorchStrategy, rows, algorithm) -> dict[str, torch.Tensor]:
    kept = {}
    strategy.stepper.optimizers[0].step = lambda: kept.update(
        {name: p.grad.clone() for name, p in strategy.model.named_parameters()}
    )
    assert not strategy.step(rows, algorithm, 0.7, None, None).skipped
    return kept


@pytest.mark.parametrize("micro_tokens", [4096, 100, 1])
def test_logprobs_and_gradients_are_those_of_whole_rows(tiny_path, rollouts, micro_tokens):
    rows = build_rows(rollouts, RLOO)
    apart, shared = (
        make(tiny_path, shares=shares, micro_tokens=micro_tokens if shares else 4096) for shares in (False, True)
    )
    assert torch.allclose(apart.score(rows, 0.7), shared.score(rows, 0.7), atol=1e-5)
    expected, found = gradients(apart, rows, RLOO), gradients(shared, rows, RLOO)
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-6 * max(1.0, largest)), name


def test_a_critic_shares_too(tiny_path, rollouts):
    rows = token_rows(rollouts)
    found = []
    for shares in (False, True):
        critic = Critic(tiny_path, Optimization(learning_rate=1e-2, precision="float32"), Arithmetic("cpu", "float32"))
        critic.model.states.shares = shares
        rows.values = critic.values(rows)
        assign(rows, torch.tensor([rollout.reward for rollout in rollouts]), replace(PPO, whiten=False))
        critic.step(rows, None)
        found.append(critic.values(rows))
    assert found[0].abs().max() > 0
    assert torch.allclose(*found, atol=1e-4)


@pytest.mark.parametrize("micro_tokens", [4096, 60, 1])
def test_each_prompt_is_computed_once_and_every_row_has_its_own(tiny_path, rollouts, micro_tokens):
    decoder = make(tiny_path, shares=True)._scorer.decoder
    rows = build_rows(rollouts, RLOO).numbered()
    encoded, seen = [], Counter()
    encode = decoder.encode
    decoder.encode = lambda ids, lengths: encoded.extend(lengths.tolist()) or encode(ids, lengths)
    for part, prefix in passes(decoder, rows, micro_tokens, Arithmetic("cpu", "float32")):
        seen.update(part.owner.tolist())
        if prefix is not None:
            first = (part.mask.cumsum(1) == 0).sum(1)
            assert (prefix.lengths == first - 1).all()
    assert sorted(encoded) == [14, 29]
    assert seen == Counter(range(len(rollouts)))


@pytest.mark.parametrize("cache", ["refuses", "forgets"])
def test_a_model_that_cannot_go_on_from_a_cache_says_why_once(tiny_path, rollouts, caplog, monkeypatch, cache):
    """The cache raises, or forgets the first token."""

    class Cache(DynamicCache):
        def update(self, keys, values, *more):
            if cache == "refuses":
                raise TypeError("no cache\nof this kind")
            keys, values = super().update(keys, values, *more)
            return keys, values.clone().index_fill_(2, torch.tensor([0]), 0.0)

    plain = TorchStrategy(tiny_path, Optimization(precision="float32"))
    with monkeypatch.context() as patch:
        patch.setattr("envhub.trainer.decoder.DynamicCache", Cache)
        strategy = TorchStrategy(tiny_path, Optimization(precision="float32"))
    rows = build_rows(rollouts, RLOO)
    assert torch.equal(strategy.score(rows, 0.7), make(tiny_path, shares=False).score(rows, 0.7))
    assert plain._scorer.decoder.shares and not strategy._scorer.decoder.shares
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("envhub.trainer")]
    assert line.startswith("LlamaModel cannot go on from a cached prompt (")
    assert "TypeError: no cache of this kind" in line if cache == "refuses" else "then differ by" in line


@pytest.mark.parametrize("changes", [{"gradient_checkpointing": True}, {"sliding_window": 8}])
def test_models_that_cannot_share_compute_whole_rows(tiny_path, tmp_path, rollouts, changes):
    rows, path = build_rows(rollouts, RLOO), tiny_path
    if window := changes.pop("sliding_window", None):
        from transformers import AutoConfig, MistralConfig

        config = AutoConfig.from_pretrained(tiny_path)
        small = {"vocab_size": config.vocab_size, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
                 "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
        AutoModelForCausalLM.from_config(MistralConfig(**small, sliding_window=window)).save_pretrained(tmp_path)
        path = tmp_path
    strategy = TorchStrategy(path, Optimization(precision="float32", **changes))
    assert not strategy._scorer.decoder.shares
    strategy.step(rows, RLOO, 1.0, None, None)
    with torch.no_grad():
        logits = strategy.model(input_ids=rows.token_ids[:1, : int(rows.lengths[0])]).logits
    at = int(rows.mask[0].nonzero()[0])
    expected = logits.log_softmax(-1)[0, at - 1, rows.token_ids[0, at]]
    assert torch.allclose(strategy.score(rows, 1.0)[0, at], expected, atol=1e-5)


@given(lengths=st.lists(st.integers(1, 60), max_size=30), budget=st.integers(1, 200))
def test_a_partition_has_every_row_once_and_is_as_even_as_its_number_of_parts_allows(lengths, budget):
    parts = partition(torch.tensor(lengths, dtype=torch.long), budget)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))

    def size(part):
        return len(part) * max(lengths[row] for row in part)

    assert all(size(part) <= budget or len(part) == 1 for part in parts)
    if len(parts) > 1:  # no smaller budget has as few parts
        assert len(partition(torch.tensor(lengths), max(map(size, parts)) - 1)) > len(parts) or max(lengths) >= max(
            map(size, parts)
        )
