"""The configuration of a run: presets, files, flags, and mistakes."""

from pathlib import Path
from typing import get_type_hints

import pytest
from pydantic import ValidationError

from envhub import plugins
from envhub.errors import UserError
from envhub.limits import Limits
from envhub.trainer.algorithms import GRPO, get_algorithm
from envhub.trainer.config import TrainConfig, layers, resolve
from envhub.trainer.data import TaskSampler
from envhub.trainer.plan import plan
from envhub.trainer.presets import ALGORITHM_PRESETS, origins
from envhub.trainer.run import next_folder


def test_values_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('env = "guess_number"\npreset = "test"\nsteps = 7\n[env_config]\nhigh = 10\n')
    config = resolve({"steps": 9, "seed": None}, file=file)
    assert (config.steps, config.group_size, config.env_config) == (9, 4, {"high": 10})


def test_an_algorithm_brings_its_preset_and_what_is_given_wins(tmp_path):
    def made(**values):
        return resolve({"preset": "test", "env": "guess_number", **values})

    assert (made(algo="dapo").updates_per_step, made(algo="dapo").filter_rounds) == (2, 2)
    assert made(algo="dapo", filter_rounds=0).filter_rounds == 0
    file = tmp_path / "run.toml"
    file.write_text('env = "guess_number"\nalgo = "ppo"\nupdates_per_step = 1\n')
    assert resolve({}, file=file).updates_per_step == 1
    assert made() == made(algo="reinforce_baseline")
    assert set(ALGORITHM_PRESETS) <= set(plugins.names(plugins.ALGORITHMS))
    for values in ALGORITHM_PRESETS.values():
        assert values.keys() <= TrainConfig.model_fields.keys()


def test_it_is_known_where_each_value_came_from(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('env = "guess_number"\nalgo = "dapo"\nsteps = 7\ngroup_size = 2\n')
    found = origins(layers({"preset": "test", "group_size": 6, "filter_rounds": 1, "seed": None}, file))
    assert found[str(file)] == ["steps", "env", "algo"]
    assert found["given"] == ["group_size", "filter_rounds", "preset"]
    assert found["preset of algorithm dapo"] == ["updates_per_step"]
    assert {"tasks_per_step", "model"} <= set(found["preset test"]) and "steps" not in found["preset test"]


@pytest.mark.parametrize(("env", "turns"), [("sandbox_code", 1), ("guess_number", None)])
def test_on_a_cpu_only_the_main_job_has_fewer_turns_than_its_environment(env, turns):
    assert resolve({"preset": "cpu", "env": env}).max_turns is turns
    assert resolve({"preset": "cpu", "env": env, "max_turns": 3}).max_turns == 3


def test_a_saved_configuration_is_read_as_it_was_whatever_presets_say(tmp_path):
    config = resolve(
        {"preset": "test", "env": "guess_number", "algo": "ppo", "updates_per_step": 1, "output": "runs/a"}
    )
    file = tmp_path / "config.json"
    file.write_text(config.model_dump_json())
    assert resolve({}, file=file) == config
    assert resolve({"output": "runs/b"}, file=file) == config.model_copy(update={"output": Path("runs/b")})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "config.json is damaged: it holds no object"),
        ('{"env": ', "config.json is damaged"),
        ('{"env": "guess_number", "steps": null}', "steps: .*given None"),
        ('{"env": "guess_number", "stepz": 1}', "did you mean 'steps'"),
        ('{"env": "guess_number", "preset": ["cpu"]}', "preset: "),
        ('{"env": "guess_number", "algo": ["ppo"]}', "algo: "),
    ],
)
def test_a_broken_json_file_is_named(tmp_path, text, said):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        resolve({}, file=file)


def test_a_plan_has_the_options_of_algorithm_and_rewards():
    values = {"algo": "dr_grpo", "kl_coef": 0.1, "kl_in": "reward", "gamma": 0.9, "loss": "cispo", "clip_high": 3.0}
    shaping = {"reward_clip": 2.0, "overlong_buffer": 8, "max_turns": 2, "max_turn_tokens": 16}
    made = plan(resolve({"preset": "test", "env": "guess_number", **values, **shaping}))
    algorithm = made.algorithm
    assert (algorithm.kl_in, algorithm.gamma, algorithm.loss, algorithm.clip_high) == ("reward", 0.9, "cispo", 3.0)
    assert algorithm.length == made.shaping.longest == 32
    assert (made.shaping.clip, made.shaping.overlong_buffer) == (2.0, 8)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"env": "guess_number", "stepz": 1}, "no configuration key 'stepz'.*did you mean 'steps'"),
        ({"env": "guess_number", "steps": 0}, "steps: .*greater than or equal to 1.*given 0"),
        ({"env": "guess_number", "group_size": -4}, "group_size: .*given -4"),
        ({"env": "guess_number", "learning_rate": "fast"}, "learning_rate: .*given 'fast'"),
        ({"env": "guess_number", "group_size": 4, "minimum_group": 5}, "minimum_group 5 is larger than group_size 4"),
        ({}, "--env sandbox_code"),
    ],
)
def test_a_mistake_names_the_key_and_the_remedy(values, said):
    with pytest.raises(UserError, match=said):
        resolve({"preset": "test", **values})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"env": "guess_numbr"}, "did you mean 'guess_number'"),
        ({"algo": "grop"}, "did you mean 'grpo'"),
        ({"group_size": 1}, "group_size is at least 2, not 1"),
        ({"aggregation": "token_meen"}, "did you mean 'token_mean'"),
        ({"correction": "tiss"}, "did you mean 'tis'"),
        ({"loss": "pppo"}, "loss is one of ppo, gspo, gmpo, cispo, sapo, nll, not 'pppo'; did you mean 'ppo'"),
        ({"dual_clip": 1.1}, "dual_clip is above 1 \\+ clip_high = 1.2, not 1.1"),
        ({"overlong_buffer": 10**6}, "overlong_buffer is at most the"),
        ({"split": "trian"}, "did you mean 'train'"),
        ({"env_config": {"hihg": 3}}, "did you mean 'high'"),
        (
            {"algo": "gspo", "dual_clip": 3.0},
            "dual_clip is no bound of the loss 'gspo', which has only clip_low, clip_high",
        ),
        ({"algo": "sapo", "clip_high": 0.3}, "clip_high is no bound of the loss 'sapo', which has no bounds"),
        ({"kl": "k3"}, "kl is of the KL to a reference, which has no weight"),
        ({"kl_in": "reward"}, "kl_in is of the KL to a reference, which has no weight"),
        ({"algo": "ppo", "kl_coef": 0.1, "kl": "k3"}, "kl k3 is for the loss; in the reward it is k1"),
        ({"kl_coef": 0.1, "kl_horizon": 5}, "kl_horizon is without effect where no kl_target is set"),
        ({"overlong_factor": 0.5}, "overlong_factor is without effect where no overlong_buffer is set"),
        (
            {"algo": "ppo", "steps": 9, "critic_warmup": 4, "warmup_steps": 10},
            "not below the 10 optimizer steps of the run",
        ),
        (
            {"algo": "ppo", "steps": 3, "warm_start": 9, "warmup_steps": 6},
            "warmup_steps 6 is not below the 6 optimizer steps of the critic",
        ),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_anything_starts(values, said):
    with pytest.raises(UserError, match=said):
        plan(resolve({"preset": "test", "env": "guess_number", **values}))


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ({"algo": "grpo"}, (9, 0)),
        ({"algo": "grpo", "warm_start": 5}, (14, 0)),
        ({"algo": "ppo", "warm_start": 5, "critic_warmup": 4}, (15, 18)),  # its preset takes two updates
    ],
)
def test_the_schedules_spread_over_the_optimizer_steps_that_are_taken(values, steps):
    planned = plan(resolve({"preset": "test", "env": "guess_number", "steps": 9, **values}))
    assert (planned.policy_steps, planned.critic_steps) == steps


def fields_of(kind: type) -> list[str]:
    hints = get_type_hints(TrainConfig)  # without what is annotated
    return [name for name in TrainConfig.model_fields if hints[name] in (kind, kind | None)]


@pytest.mark.parametrize("name", fields_of(int))
def test_every_whole_number_has_a_largest_one(name):
    for value in ("9" * 30, int("9" * 30)):
        with pytest.raises(UserError, match=rf"{name}: Input should be less than or equal to \d+ \(given '?9999"):
            resolve({"preset": "test", "env": "guess_number", name: value})
    with pytest.raises(UserError, match=f"{name}: "):
        resolve({"preset": "test", "env": "guess_number", name: -1})


@pytest.mark.parametrize("name", fields_of(float))
@pytest.mark.parametrize("value", ["nan", "inf", float("nan"), float("inf"), 10**400, -0.1])
def test_every_quantity_is_finite_and_not_negative(name, value):
    with pytest.raises(UserError, match=f"{name}: "):
        resolve({"preset": "test", "env": "guess_number", name: value})


def test_sizes_of_large_runs_are_taken():
    config = resolve(
        {"preset": "gpu", "env": "guess_number", "steps": 100_000, "tasks_per_step": 4096, "group_size": 64,
         "max_turns": 1000, "max_turn_tokens": 131_072, "micro_tokens": 262_144, "seed": 2**63 - 1}
    )  # fmt: skip
    assert config.seed == 2**63 - 1


@pytest.mark.parametrize("name", ["max_turns", "max_turn_tokens", "max_episode_tokens"])
@pytest.mark.parametrize("value", [0, 1, 1_000_000, 1_000_001, 10**9, 10**9 + 1])
def test_a_limit_of_a_run_is_one_of_an_episode_and_the_other_way_round(name, value):
    try:
        Limits(**{name: value})
    except ValidationError:
        with pytest.raises(UserError, match=f"{name}: "):
            resolve({"preset": "test", "env": "guess_number", name: value})
    else:
        assert getattr(resolve({"preset": "test", "env": "guess_number", name: value}), name) == value


@pytest.mark.parametrize(
    ("value", "said"), [(0, "greater than 0"), (0.005, "at least 0.01"), (2.5, "less than or equal")]
)
def test_training_samples_at_a_temperature_that_can_be_computed(value, said):
    with pytest.raises(UserError, match=f"temperature: .*{said}"):
        resolve({"preset": "test", "env": "guess_number", "temperature": value})
    assert resolve({"preset": "test", "env": "guess_number", "temperature": 0.01}).temperature == 0.01


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tasks_per_step": 60_000, "group_size": 4000}, "tasks_per_step x group_size is at most 1000000.*240000000"),
        ({"eval_tasks": 1_000_000, "eval_samples": 1000}, "eval_tasks x eval_samples is at most"),
    ],
)
def test_sizes_are_within_reach_together(values, said):
    with pytest.raises(UserError, match=said):
        resolve({"preset": "test", "env": "guess_number", **values})


def test_the_parts_of_an_algorithm_are_finite_too():
    for name, value in (("kl_coef", float("nan")), ("kl_coef", -1.0), ("clip_low", float("inf")), ("dual_clip", -3.0)):
        with pytest.raises(UserError, match=f"'grpo': {name} is .*, not {value}"):
            GRPO.with_options(**{name: value})


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("transformers", {"max_batches": 4}, "max_batches.*did you mean 'max_batch'"),
        ("transformers", {"max_batch": "many"}, "max_batch: .*given 'many'"),
        ("transformers", {"dtype": "bf16"}, "dtype: .*given 'bf16'"),
        ("vllm", {"gpu_memry": 0.5}, "gpu_memry.*did you mean 'gpu_memory'"),
        ("vllm", {"gpu_memory": float("nan")}, "gpu_memory: "),
        ("openai", {"base_url": "nowhere"}, "base_url"),
    ],
)
def test_options_of_the_engine_are_checked_before_it_is_started(engine, options, said):
    with pytest.raises(UserError, match=said):
        plan(resolve({"preset": "test", "env": "guess_number", "engine": engine, "engine_options": options}))


def test_a_seed_that_is_right_for_the_run_is_right_for_its_engine():
    for engine in ("transformers", "vllm"):
        plan(resolve({"preset": "test", "env": "guess_number", "engine": engine, "seed": 2**63 - 1}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"steps = ", "is no TOML"),
        (b"\xff", "is no TOML"),
        (b"steps = " + b"9" * 5000, "is no TOML"),
        (b"steps = " + b"[" * 100_000, "is no TOML"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, said):
    file = tmp_path / "run.toml"
    file.write_bytes(text)
    with pytest.raises(UserError, match=said):
        resolve({}, file=file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="cannot read .*none.toml"):
        resolve({}, file=tmp_path / "none.toml")


def test_options_replace_an_algorithms_parts():
    assert get_algorithm("grpo").with_options(kl_coef=0.1, clip_high=None) == GRPO.with_options(kl_coef=0.1)
    assert get_algorithm("grpo").kl_coef == 0.0


def test_every_task_comes_once_an_epoch_in_an_order_that_can_be_taken_up():
    from envhub.environments.sandbox_code import SandboxCodeEnvironment

    tasks = SandboxCodeEnvironment(levels=[1]).tasks
    size = tasks.size("train")
    sampler = TaskSampler(tasks, "train", seed=3)
    first, second = ([task.id for task in sampler.take(size)] for _ in range(2))
    assert sorted(first) == sorted(second) and first != second and len(set(first)) == size
    again = TaskSampler(tasks, "train", seed=3)
    again.load_state({"position": size, "seed": 3})
    assert [task.id for task in again.take(size)] == second


def test_run_folders_are_numbered(tmp_path):
    assert next_folder("a/b", "grpo", tmp_path).name == "a.b-grpo-1"
    (tmp_path / "a.b-grpo-1").mkdir()
    assert next_folder("a/b", "grpo", tmp_path).name == "a.b-grpo-2"


@pytest.mark.parametrize("preset", ["cpu", "gpu"])
def test_a_preset_saves_on_the_way(preset: str):
    config = resolve({"preset": preset, "env": "guess_number"})
    assert 0 < config.save_every < config.steps
