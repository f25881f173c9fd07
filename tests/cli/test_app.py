"""The command line: exit codes, suggestions, and each command as typed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envhub.cli.app import COMMANDS


def test_help_lists_every_command(cli):
    code, out, _ = cli("--help")
    assert code == 0
    assert all(name in out for name in COMMANDS)


LONG = "x" * 5000
DEEP = "[" * 20_000 + "]" * 20_000
DIGITS = "9" * 5000


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(cli, name):
    code, out, _ = cli(name, "--help")
    assert code == 0
    assert out.startswith("Usage: envhub " + name)


def test_help_is_a_command_too(cli):
    assert cli("help") == cli("--help")
    assert cli("help", "train") == cli("train", "--help")


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
        (["eval", "guess_number", "--model", "~nosuchuser/x"], "the model: .~nosuchuser/x. begins with a home folder"),
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
        (["train", "--env", "guess_number", "--algo", "gpro"], "did you mean 'grpo'"),
        (["train", "--env", "guess_number", "--lr", "1"], "no such flag --lr; did you mean '--learning-rate'"),
        (["train", "guess_number", "--steps", "1"], "the environment is given with --env: --env guess_number"),
        (["help", "trian"], "no command 'trian'; .*did you mean 'train'"),
        (["train"], "say what to train on"),
        (["train", "--resume", "nowhere"], "no training run to resume in nowhere"),
        (["info", "missing.py"], "no environment at missing.py"),
        (["register", "missing.py"], "no environment at missing.py"),
        (["unregister", "missing"], "no environment 'missing' in the user's registry"),
        (["unregister", "guess_number"], "comes with envhub and cannot be removed"),
        (["replay", "nowhere"], "cannot read nowhere"),
        (["compare", "a", "b"], "no evaluation in a"),
        (["init", "My-Env"], "'My-Env' cannot name an environment: .* small letters, digits and _, such as my_env"),
        (["init", "../a"], "'../a' cannot name an environment: .*--folder"),
        (["init", "/abs/x"], "cannot name an environment"),
        (["init", "./a"], "cannot name an environment"),
        (["init", "a/"], "cannot name an environment"),
        (["init", "."], "cannot name an environment"),
        (["init", ""], "cannot name an environment"),
        (["init", "a b"], "cannot name an environment"),
        (["init", "class"], "'class' cannot name an environment: .*Python"),
        (["init", "1a"], "cannot name an environment"),
        (["init", "a\n"], "cannot name an environment"),
        (["init", "random"], "'random' cannot name an environment: .*Python"),
        (["init", "envhub"], "cannot name an environment"),
        (["init", LONG], "cannot name an environment"),
        (["register", "guess_number", "--name", ""], "'' is no environment id|no environment"),
        (["info", LONG], "at most 100 characters"),
        (["info", f"./{LONG}.py"], "too long"),
        (["info", f"env-v{'9' * 5000}"], "at most 100 characters"),
        (["info", "~nosuchuser/env.py"], "~nosuchuser"),
        (["register", LONG], "too long"),
        (["register", f"./{LONG}.py"], "too long"),
        (["unregister", LONG], "no environment|at most 100"),
        (["check", LONG], "at most 100 characters"),
        (["play", LONG], "at most 100 characters"),
        (["replay", LONG], "too long"),
        (["compare", LONG, "b"], "too long"),
        (["train", "--resume", LONG], "too long"),
        (["train", "--config", LONG], "too long"),
        (["train", "--env", LONG], "at most 100 characters"),
        (["eval", LONG, "--model", "scripted:oracle"], "at most 100 characters"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--output", LONG], "too long"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--baseline", LONG], "too long"),
        (["eval", "guess_number", "--model", f"scripted:{LONG}"], "no .*policy|scripted"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--config", f"high={DEEP}"], "--config high: .*nested"),
        (["eval", "guess_number", "--model", "scripted:oracle", "--config", f"high={DIGITS}"], "high: .*digits"),
        (
            ["eval", "guess_number", "--model", "scripted:oracle", "--engine-options", f"x={DEEP}"],
            "options x: .*nested",
        ),
        (["eval", "guess_number", "--model", "scripted:oracle", "--tasks", DIGITS], "tasks: "),
        (["eval", "guess_number", "--model", "scripted:oracle", "--k", DIGITS], "--k takes"),
        (["info", "guess_number", "--config", f"high={DEEP}"], "--config high: .*nested"),
        (["play", "guess_number", "--index", "-1"], "-1"),
    ],
)
def test_a_users_mistake_is_answered_in_one_line_with_code_2(cli, arguments, said):
    import re

    code, _, err = cli(*arguments)
    assert code == 2, err
    line = err.strip().splitlines()[-1]
    assert line.startswith("envhub: ")
    assert re.search(said, line), line[:2000]
    assert "Traceback" not in err
    assert len(line) < 2000


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


RAISING = {
    "import sys\n\nsys.exit(3)\n": "own.py does not import: SystemExit: 3 (line 3)",
    "import sys\nsys.exit()\n": "own.py does not import: SystemExit (line 2)",
    "class Odd(BaseException):\n    pass\n\n\nraise Odd('no')\n": "own.py does not import: Odd: no (line 5)",
    "def f():\n    return 1 / 0\n\n\nf()\n": "own.py does not import: ZeroDivisionError: division by zero (line 2)",
    "import json\njson.loads('{')\n": "own.py does not import: JSONDecodeError: ",
}


@pytest.mark.parametrize("source", RAISING)
@pytest.mark.parametrize("command", ["info", "register", "check", "eval", "play"])
def test_whatever_a_file_raises_when_it_is_imported_is_its_authors_mistake(cli, tmp_path, source, command):
    (tmp_path / "own.py").write_text(source)
    code, _, err = cli(command, "own.py", *(["--model", "scripted:null"] if command == "eval" else []))
    assert code == 2
    assert RAISING[source] in err
    assert "(line " in err


def test_a_bundled_id_is_hidden_only_where_that_is_asked_for(cli, tmp_path):
    assert cli("init", "my_env")[0] == 0
    code, _, err = cli("register", "my_env", "--name", "guess_number")
    assert code == 2
    assert "'guess_number' would hide the environment 'guess_number', which is bundled with envhub" in err
    assert "--force" in err
    code, _, err = cli("register", "my_env", "--name", "guess_number-v2")
    assert code == 2 and "newest version of 'guess_number'" in err
    assert "bundled" in cli("info", "guess_number")[1]
    assert cli("register", "my_env", "--name", "guess_number", "--force")[0] == 0
    assert "my_env" in cli("info", "guess_number")[1]
    assert cli("unregister", "guess_number")[0] == 0
    assert "bundled" in cli("info", "guess_number")[1]


def test_a_name_that_moves_to_another_place_is_said(cli):
    for name in ("one", "two"):
        cli("init", name)
    assert "before" not in cli("register", "one", "--name", "mine")[1]
    assert "before" not in cli("register", "one", "--name", "mine")[1]
    assert "mine was " in cli("register", "two", "--name", "mine")[1]


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "../a", "x" * 101])
def test_what_is_no_id_is_not_registered(cli, name):
    cli("init", "my_env")
    code, _, err = cli("register", "my_env", "--name", name)
    assert code == 2 and "no environment id" in err


@pytest.mark.parametrize("home", ["~nosuchuser/x", "x" * 5000, "file/below"])
def test_a_home_that_cannot_be_is_a_users_mistake(cli, tmp_path, monkeypatch, home):
    (tmp_path / "file").write_text("")
    cli("init", "my_env")
    monkeypatch.setenv("ENVHUB_HOME", home if home.startswith("~") else str(tmp_path / home))
    code, _, err = cli("register", "my_env")
    assert code == 2, err
    assert "ENVHUB_HOME: '~nosuchuser/x' begins with a home folder that is not there" in err or "registry" in err


@pytest.mark.parametrize("text", ["[" * 100_000, '{"environments": ' * 200 + "1" + "}" * 200, "[" + "9" * 5000 + "]"])
def test_a_registry_that_no_parser_reads_is_named(cli, text):
    import os

    (Path(os.environ["ENVHUB_HOME"]) / "registry.json").write_text(text)
    code, _, err = cli("info", "guess_number")
    assert code == 2 and "registry.json is damaged" in err


@pytest.mark.parametrize("text", ["steps = " + "9" * 5000, "a = " + "[" * 50_000, "\xff", "steps ="])
def test_a_configuration_file_that_no_parser_reads_is_named(cli, tmp_path, text):
    (tmp_path / "run.toml").write_bytes(text.encode("latin-1"))
    code, _, err = cli("train", "--env", "guess_number", "--config", "run.toml", "--dry-run")
    assert code == 2 and "run.toml" in err


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


@pytest.mark.parametrize("arguments", ["{", "[1]", "3", DEEP, f'{{"a": {DIGITS}}}', '{"a": 1, "a": 2}', ""])
def test_a_persons_malformed_call_is_an_action_of_the_episode(cli, monkeypatch, arguments):
    answers = iter([f"/call look {arguments}", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(answers))
    code, out, err = cli("play", "guess_number")
    assert code == 0, err
    assert "total reward" in out


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
    code, out, err = cli("train", "--env", "guess_number", "--preset", "test", "--env-config", "high=9", "--dry-run")
    assert code == 0
    assert 'given: env "guess_number", env_config {"high": 9}, preset "test"' in err and "preset test: steps 2, " in err
    config = json.loads(out)
    assert (config["env_config"], config["steps"], config["model"]) == ({"high": 9}, 2, "tiny")


def test_text_that_a_terminal_cannot_show_is_escaped(tmp_path):
    (tmp_path / "odd.py").write_text(
        "from envhub import Environment\n"
        "class Odd(Environment):\n"
        "    def reset(self, *, seed=None, options=None): return 'half \\ud83d é', {}\n"
        "    def step(self, action): return '', 1.0, True, False, {}\n"
    )
    command = [sys.executable, "-m", "envhub.cli", "play", "odd.py"]
    done = subprocess.run(
        command, cwd=tmp_path, input=b"hello\n", capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "half \\ud83d é" in done.stdout.decode()


def test_a_word_that_is_no_command_is_no_answer(cli, monkeypatch):
    answers = iter(["/foo", "/callx", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(answers))
    code, out, _ = cli("play", "guess_number")
    assert code == 0 and "There is no /foo; there are /oracle, /quit, /call." in out
    assert "in 0 turns" in out


def test_a_package_is_not_named_as_what_comes_with_envhub(cli, tmp_path):
    code, _, error = cli("init", "sandbox_code", "--folder", str(tmp_path))
    assert code == 2 and "'sandbox_code' comes with envhub; choose another name" in error
    assert not list(tmp_path.iterdir())
