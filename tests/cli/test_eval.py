"""Evaluations that are gone on with: what is on disk, and what is said about it."""

import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

MANY = """
from envhub import ListTasks, SingleTurnEnvironment, Task

def right(text):
    return 1.0

class Many(SingleTurnEnvironment):
    '''Say anything.'''
    tasks = ListTasks("many", {"eval": [Task(f"say {n}", id=str(n)) for n in range(101)]})
    rewards = (right,)
"""
COMMON = ["eval", "guess_number", "--model", "scripted:random", "--output", "out", "--tasks", "6"]


@pytest.fixture
def out(cli, tmp_path: Path) -> Path:
    """The folder of a finished evaluation of six rollouts."""
    assert cli(*COMMON)[0] == 0
    return tmp_path / "out"


def rows(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "rollouts.sqlite") as database:
        return sorted(row[0] for row in database.execute("SELECT id FROM rollouts"))


def lines(folder: Path) -> list[str]:
    text = (folder / "rollouts.jsonl").read_text()
    return sorted(json.loads(line)["id"] for line in text.splitlines(keepends=True) if line.endswith("\n"))


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("damage", ["missing rows", "other rows", "no database", "no database at all", "cut off"])
def test_the_database_holds_what_the_json_lines_hold(cli, out: Path, damage: str, as_json: bool) -> None:
    file, database = out / "rollouts.jsonl", out / "rollouts.sqlite"
    if damage == "missing rows":
        with sqlite3.connect(database) as opened:
            opened.execute("DELETE FROM rollouts WHERE number > 2")
    elif damage == "other rows":
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    elif damage == "no database":
        database.write_text("this is no database, and long enough to be told from one " * 20)
    elif damage == "no database at all":
        database.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-200])
    code, said, err = cli(*COMMON, *(["--json"] if as_json else []))
    assert code == 0, err
    assert len(lines(out)) == 6
    assert rows(out) == lines(out)
    assert "envhub: note: " in err and "rollouts.jsonl" in err
    if as_json:
        assert json.loads(said)["rollouts"] == 6


def test_nothing_is_noted_where_nothing_is_wrong(cli, out: Path) -> None:
    assert cli(*COMMON)[2] == ""


def test_a_line_that_a_kill_cut_off_is_run_again(cli, out: Path) -> None:
    file = out / "rollouts.jsonl"
    kept = file.read_text().splitlines(keepends=True)
    file.write_text("".join(kept[:5]) + kept[5][:100])
    code, said, err = cli(*COMMON)
    assert code == 0 and "5 of 6 rollouts are there already" in said
    assert "rollouts.jsonl ended in half a line, which is dropped" in err
    assert len(set(lines(out))) == 6
    assert set(lines(out)) >= {json.loads(line)["id"] for line in kept[:5]}


def strict(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


FAILING = [*COMMON, "--retries", "0", "--engine-options", "fail_every=1"]


def test_what_is_not_known_is_null(cli, tmp_path: Path) -> None:
    code, said, _ = cli(*FAILING, "--json")
    assert code == 1
    for values in (strict(said), strict((tmp_path / "out" / "summary.json").read_text())):
        assert (values["scored"], values["reward"]["mean"], values["turns"]) == (0, None, None)


def test_the_first_error_of_each_kind_is_shown(cli) -> None:
    code, said, _ = cli(*FAILING)
    assert code == 1
    (line,) = [line for line in said.splitlines() if line.startswith("fault engine")]
    assert line.startswith("fault engine: 6 of 6 rollouts; the first, of task guess_number/eval/0/0, sample 0: ")
    code, said, _ = cli(*FAILING, "--json")
    error = json.loads(said)["first_errors"]["engine"]
    assert (error["task"], error["member"]) == ("guess_number/eval/0/0", 0)
    assert error["text"]


@pytest.mark.parametrize(
    "content", [{"thesis.txt": "mine"}, {"config.json": '{"architectures": ["Llama"]}'}, {"config.json": "{}", "x": ""}]
)
def test_a_folder_that_holds_something_else_is_left_alone(cli, tmp_path: Path, content: dict[str, str]) -> None:
    (tmp_path / "out").mkdir()
    for name, text in content.items():
        (tmp_path / "out" / name).write_text(text)
    code, _, err = cli(*COMMON)
    assert code == 2
    assert "out" in err and "give another --output, or delete" in err
    assert "--resume" not in err
    for name, text in content.items():
        assert (tmp_path / "out" / name).read_text() == text
    assert not (tmp_path / "out" / "rollouts.jsonl").exists()


def test_an_evaluation_of_too_many_rollouts_is_refused(cli, tmp_path: Path) -> None:
    code, _, err = cli(*COMMON, "--tasks", "100001", "--samples", "10")
    assert code == 2
    assert "tasks x samples is at most 1000000, not 100001 x 10; ask for less of one of them" in err
    assert not (tmp_path / "out").exists()


def test_a_whole_split_of_too_many_rollouts_is_refused(cli, tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(MANY)
    arguments = ["eval", "many.py:Many", "--model", "scripted:random", "--output", "out", "--samples", "10000"]
    code, _, err = cli(*arguments, "--tasks", "0")
    assert code == 2
    assert "tasks x samples is at most 1000000, not 101 x 10000" in err


def test_other_settings_are_refused_with_the_remedy(cli, out: Path) -> None:
    code, _, err = cli(*COMMON, "--samples", "2")
    assert code == 2
    assert "was made with samples 1, not 2; give another --output, or delete" in err


@pytest.mark.parametrize("text", ["{", "", "[]", "\xff", '{"a": ' * 50_000, '{"tasks": ' + "9" * 5000 + "}"])
def test_a_damaged_configuration_is_named_with_the_remedy(cli, out: Path, text: str) -> None:
    (out / "config.json").write_bytes(text.encode("latin-1"))
    code, _, err = cli(*COMMON)
    assert code == 2
    assert "config.json is damaged" in err and "give another --output, or delete" in err
    assert len(lines(out)) == 6


@pytest.mark.parametrize("damage", ['{"id": 3}', "[1]", "{", '{"id": "\\ud800"}'])
def test_a_damaged_line_is_named_with_the_remedy(cli, out: Path, damage: str) -> None:
    file = out / "rollouts.jsonl"
    kept = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*kept[:2], damage + "\n", *kept[2:]]))
    before = file.read_bytes()
    code, _, err = cli(*COMMON)
    assert code == 2
    assert "rollouts.jsonl, line 3: no rollout record" in err
    assert "delete that line, and its rollout is run again" in err
    assert file.read_bytes() == before
    for command in (["compare", "out", "out"], ["replay", "out/rollouts.jsonl"]):
        code, _, err = cli(*command)
        assert code == 2 and "line 3" in err


def test_a_last_line_without_a_newline_is_kept(cli, out: Path) -> None:
    file = out / "rollouts.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole.rstrip(b"\n"))
    code, said, err = cli(*COMMON)
    assert (code, err) == (0, "") and "all 6 rollouts are there already" in said
    assert file.read_bytes() == whole


def test_a_line_of_another_environment_is_refused(cli, out: Path) -> None:
    file = out / "rollouts.jsonl"
    kept = file.read_text().splitlines(keepends=True)
    foreign = kept[3].replace('"environment": "guess_number"', '"environment": "sums"')
    assert foreign != kept[3]
    file.write_text("".join([*kept[:3], "\n", foreign, *kept[4:]]))
    before = file.read_bytes()
    code, _, err = cli(*COMMON)
    assert code == 2
    assert "out/rollouts.jsonl, line 5: a rollout of environment 'sums', in an evaluation of 'guess_number'" in err
    assert "delete that line, or give another --output" in err
    assert file.read_bytes() == before
    assert len(rows(out)) == 6


def test_lines_that_are_there_twice_are_dropped(cli, out: Path) -> None:
    file = out / "rollouts.jsonl"
    kept = file.read_text().splitlines(keepends=True)
    summary = (out / "summary.json").read_text()
    file.write_text("".join([kept[4], kept[2], *kept, kept[2]]))
    code, said, err = cli(*COMMON)
    assert code == 0 and "all 6 rollouts are there already" in said
    assert err == "envhub: note: out/rollouts.jsonl: 3 doubled lines (of one rollout id) dropped\n"
    assert sorted(file.read_text().splitlines(keepends=True)) == sorted(kept)
    assert (out / "summary.json").read_text() == summary
    assert cli(*COMMON)[2] == ""


def test_lines_that_an_editor_has_saved_are_gone_on_with(cli, out: Path) -> None:
    file = out / "rollouts.jsonl"
    text = file.read_text().replace("\n", "\r\n\r\n")
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    code, said, err = cli(*COMMON)
    assert code == 0 and "all 6 rollouts are there already" in said, err


@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts.sqlite", "summary.json", ".lock"])
def test_a_folder_where_a_file_belongs_is_named(cli, out: Path, name: str) -> None:
    (out / name).unlink()
    (out / name).mkdir()
    code, _, err = cli(*COMMON)
    assert code == 2
    assert str(out.relative_to(out.parent)) in err and "Traceback" not in err


@pytest.mark.parametrize("output", ["file", "file/below", "file/below/deep"])
def test_a_place_that_cannot_be_written_is_named(cli, tmp_path: Path, output: str) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = cli(*[output if item == "out" else item for item in COMMON])
    assert code == 2 and output.split("/")[0] in err


def test_a_folder_that_another_process_writes_to_is_refused(cli, out: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom envhub.records import RunFolder\n"
        "with RunFolder.open(Path('out'), resume=True):\n    print('locked', flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=out.parent) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "locked\n"
        failed, _, err = cli(*COMMON)
        holder.stdin.close()
        assert holder.wait(60) == 0
    assert failed == 2
    assert f"the folder out is in use by process {holder.pid}" in err
    assert cli(*COMMON)[0] == 0


def test_two_evaluations_at_once_into_one_folder_do_not_mix(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from envhub.cli import main; main()", *COMMON]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [(process.communicate(timeout=60)[1], process.returncode) for process in both]
    assert all(code == 0 or (code == 2 and ("in use" in err or "exists" in err)) for err, code in ended), ended
    assert any(code == 0 for _, code in ended)
    assert len(lines(tmp_path / "out")) == len(set(lines(tmp_path / "out"))) == 6
    assert rows(tmp_path / "out") == lines(tmp_path / "out")


def test_an_evaluation_that_was_killed_is_gone_on_with(cli, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from envhub.cli import main; main()", *COMMON, "--concurrency", "1"]
    file = tmp_path / "out" / "rollouts.jsonl"
    with subprocess.Popen([*command, "--engine-options", "latency=0.05"], cwd=tmp_path) as process:
        while process.poll() is None and not (file.is_file() and file.read_bytes().count(b"\n") >= 2):
            time.sleep(0.01)
        process.kill()
    before = set(lines(tmp_path / "out"))
    assert 2 <= len(before) < 6
    code, said, _ = cli(*COMMON)
    assert code == 0 and f"{len(before)} of 6 rollouts are there already" in said
    assert len(lines(tmp_path / "out")) == 6
    assert before <= set(lines(tmp_path / "out"))
    assert rows(tmp_path / "out") == lines(tmp_path / "out")


@pytest.mark.parametrize(
    ("environment", "model", "said"),
    [
        ("guess_numbr", "scripted:oracle", "did you mean 'guess_number'"),
        ("guess_number", "gpt", "no model 'gpt'"),
        ("guess_number", "scripted:orcle", "did you mean 'oracle'"),
        ("guess_number", "no/such/folder/", "no such folder"),
    ],
)
def test_what_cannot_be_evaluated_leaves_no_folder(
    cli, tmp_path: Path, environment: str, model: str, said: str
) -> None:
    code, _, err = cli("eval", environment, "--model", model)
    assert code == 2 and said in err
    assert not (tmp_path / "runs").exists()


def test_the_engine_is_named_before_it_starts(cli) -> None:
    code, out, _ = cli("eval", "guess_number", "--model", "tiny", "--engine", "transformers", "--tasks", "1")
    assert code == 0
    assert "starting engine transformers" in out.splitlines()


def test_a_training_run_is_no_evaluation_to_compare(cli, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    code, _, err = cli("compare", str(tmp_path), str(tmp_path))
    assert code == 2 and f"{tmp_path} is a training run, not an evaluation" in err
