"""The configuration of a run: presets, files, flags, and mistakes."""

import pytest

from envhub.errors import UserError
from envhub.trainer.algorithms import GRPO, get_algorithm
from envhub.trainer.config import resolve
from envhub.trainer.data import TaskSampler
from envhub.trainer.run import next_folder, plan


def test_values_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('env = "guess_number"\npreset = "test"\nsteps = 7\n[env_config]\nhigh = 10\n')
    config = resolve({"steps": 9, "seed": None}, file=file)
    assert (config.steps, config.group_size, config.env_config) == (9, 4, {"high": 10})


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
        ({"split": "trian"}, "did you mean 'train'"),
        ({"env_config": {"hihg": 3}}, "did you mean 'high'"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_before_anything_starts(values, said):
    with pytest.raises(UserError, match=said):
        plan(resolve({"preset": "test", "env": "guess_number", **values}))


@pytest.mark.parametrize(("text", "said"), [(b"steps = ", "is no TOML"), (b"\xff", "is no TOML")])
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
