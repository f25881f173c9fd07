"""The command line: exit codes, suggestions, and each command as typed."""

import json
import subprocess
import sys

import pytest

from envhub.cli.app import COMMANDS


def test_help_lists_every_command(cli):
    code, out, _ = cli("--help")
    assert code == 0
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(cli, name):
    code, out, _ = cli(name, "--help")
    assert code == 0
    assert out.startswith("Usage: envhub " + name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "no command 'trian'; .*did you mean 'train'"),
        (["eval", "guess_numbr", "--model", "scripted:oracle"], "did you mean 'guess_number'"),
        (["eval", "guess_number", "--modle", "x"], "no such flag --modle; did you mean '--model'"),
        (["eval", "guess_number"], "say what to evaluate: --model"),
        (["eval", "guess_number", "--model", "scripted:orcle"], "did you mean 'oracle'"),
        (["eval", "guess_number", "--model", "tiny", "--engine", "vlm"], "did you mean 'vllm'"),
        (["eval", "guess_number", "--model", "tny"], "no model 'tny'.*did you mean 'tiny'"),
        (["eval", "guess_number", "--model", "no/such/folder/"], "no such folder"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--tasks", "0"], "never ends; say how many tasks"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--tasks", "-3"], "tasks: .*given '?-3"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--samples", "0"], "samples: .*given '?0"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--split", "tset"], "no split 'tset'"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--config", "hihg=3"], "did you mean 'high'"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--config", "high"], "KEY=VALUE, not 'high'"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--k", "one"], "--k takes numbers"),
        (["train", "--env", "guess_number", "--algo", "grop"], "did you mean 'grpo'"),
        (["train", "--env", "guess_number", "--steps", "0"], "steps: .*given '?0"),
        (["train", "--env", "guess_number", "--group-size", "1"], "group_size is at least 2"),
        (["train", "--env", "guess_number", "--group-sise", "4"], "did you mean '--group-size'"),
        (["train"], "say what to train on"),
        (["train", "--resume", "nowhere"], "no training run to resume in nowhere"),
        (["info", "missing.py"], "no environment at missing.py"),
        (["register", "missing.py"], "no environment at missing.py"),
        (["unregister", "missing"], "no environment 'missing' in the user's registry"),
        (["unregister", "guess_number"], "published by package"),
        (["replay", "nowhere"], "cannot read nowhere"),
        (["compare", "a", "b"], "no evaluation in a"),
        (["init", "My-Env"], "cannot name an environment"),
        (["play", "guess_number", "--index", "-1"], "-1"),
    ],
)
def test_a_users_mistake_is_answered_in_one_line_with_code_2(cli, arguments, said):
    import re

    code, _, err = cli(*arguments)
    assert code == 2, err
    line = err.strip().splitlines()[-1]
    assert line.startswith("envhub: ")
    assert re.search(said, line), line
    assert "Traceback" not in err


def test_debug_shows_the_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from envhub.cli import main; main()", "--debug", "info", "guess_numbr"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_an_environment_file_with_two_classes_or_none_or_an_error_is_explained(cli, tmp_path):
    body = "from envhub import Environment\n"
    (tmp_path / "two.py").write_text(body + "class A(Environment): pass\nclass B(Environment): pass\n")
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("def (:\n")
    assert "defines 2 environments (A, B); name one" in cli("register", "two.py")[2]
    assert "defines no environment class" in cli("register", "none.py")[2]
    code, _, err = cli("register", "broken.py")
    assert code == 2 and "does not import: SyntaxError" in err


def test_the_way_from_init_to_a_result_works_from_any_folder(cli, tmp_path, monkeypatch):
    assert cli("init", "my_env")[0] == 0
    assert cli("init", "my_env")[0] == 2
    assert cli("register", "my_env")[0] == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, out, _ = cli("check", "my_env")
    assert code == 0, out
    assert "all checks passed" in out
    code, out, _ = cli("eval", "my_env", "--model", "scripted:oracle", "--tasks", "4", "--json")
    assert code == 0
    assert json.loads(out)["reward"]["mean"] == 1.0
    assert "my_env" in cli("list", "--kind", "environments")[1]
    file = tmp_path / "my_env" / "my_env" / "__init__.py"
    file.write_text(file.read_text() + "\n# changed\n")
    code, _, err = cli("info", "my_env")
    assert code == 0 and "has changed since it was registered" in err
    assert cli("unregister", "my_env")[0] == 0
    assert cli("info", "my_env")[0] == 2


def test_the_written_package_passes_its_own_tests(cli, tmp_path):
    cli("init", "my_env")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "my_env", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_an_evaluation_is_gone_on_with_and_another_one_refused(cli):
    common = ["eval", "guess_number", "--model", "scripted:random", "--output", "out"]
    assert cli(*common, "--tasks", "3")[0] == 0
    code, out, _ = cli(*common, "--tasks", "3")
    assert code == 0 and "all 3 rollouts are there already" in out
    code, _, err = cli(*common, "--tasks", "4")
    assert code == 2 and "tasks 3, not 4" in err


def test_an_interrupted_evaluation_runs_only_what_is_missing(cli, tmp_path):
    common = ["eval", "guess_number", "--model", "scripted:random", "--output", "out", "--tasks", "6"]
    cli(*common)
    file = tmp_path / "out" / "rollouts.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]) + lines[4][:50])
    code, out, _ = cli(*common)
    assert code == 0 and "4 of 6 rollouts are there already" in out
    assert len(file.read_text().splitlines()) == 6


def test_failing_engines_are_counted_and_nothing_scored_is_a_failure(cli):
    code, out, _ = cli(
        "eval", "guess_number", "--model", "scripted:oracle", "--tasks", "2", "--retries", "0",
        "--engine-options", "fail_every=1", "--json",
    )  # fmt: skip
    assert code == 1
    summary = json.loads(out)
    assert (summary["scored"], summary["faults"]) == (0, {"engine": 2})


def test_replay_finds_a_changed_environment(cli, tmp_path):
    file = tmp_path / "sum.py"
    file.write_text(
        "from envhub import Environment\n\n\nclass Sum(Environment):\n    '''Adds.'''\n"
        "    def reset(self, *, seed=None, options=None):\n        return 'go', {}\n"
        "    def step(self, action):\n        return '', 1.0, True, False, {}\n"
    )
    assert cli("eval", "sum.py", "--model", "scripted:null", "--tasks", "2", "--output", "out")[0] == 0
    assert cli("replay", "out")[0] == 0
    file.write_text(file.read_text().replace("1.0", "0.5"))
    code, out, _ = cli("replay", "out")
    assert code == 1
    assert "reward of turn 0" in out and "has changed since" in out


def test_a_person_plays(cli, monkeypatch):
    answers = iter(["/oracle"] * 10)
    monkeypatch.setattr("builtins.input", lambda prompt="": next(answers))
    code, out, _ = cli("play", "guess_number")
    assert code == 0
    assert "terminated" in out and "total reward" in out


def test_info_as_json_tells_everything(cli):
    about = json.loads(cli("info", "sandbox_code", "--json")[1])
    assert about["oracle"] is True
    assert about["tasks"]["train"] > about["tasks"]["eval"] > 0
    assert "tries" in about["configuration"]


def test_list_shows_every_kind_and_who_published_it(cli):
    rows = json.loads(cli("list", "--json")[1])
    assert {row["name"] for row in rows["algorithms"]} >= {"reinforce_baseline", "grpo", "rloo"}
    assert {row["name"] for row in rows["engines"]} >= {"vllm", "transformers", "openai", "scripted"}
    assert all(row["source"] == "bundled" for row in rows["environments"])


def test_a_dry_run_prints_the_resolved_configuration(cli):
    code, out, _ = cli("train", "--env", "guess_number", "--preset", "test", "--env-config", "high=9", "--dry-run")
    assert code == 0
    config = json.loads(out)
    assert (config["env_config"], config["steps"], config["model"]) == ({"high": 9}, 2, "tiny")
