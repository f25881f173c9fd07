import asyncio
import json
from pathlib import Path

import pytest

import envhub
from envhub.environments.math_verify import MathVerifyEnvironment, math_reward
from envhub.environments.math_verify.tasks import FAMILIES, gold_answer
from envhub.errors import DataError, RewardFault, UserError
from envhub.messages import Action
from envhub.tasks import Task


async def test_an_answer_that_cannot_be_verified_is_a_fault_and_no_zero():
    from envhub.rewards import RewardContext

    task = Task("q", answer=r"\sqrt{-1-x^2}")
    with pytest.raises(RewardFault, match="cannot be verified"):
        await math_reward.score(RewardContext(task, Action(r"\boxed{1+\sqrt{-1-x^2}}"), (), MathVerifyEnvironment()))


async def test_the_policy_of_the_configuration_counts():
    for policy, reward in (({}, 0.0), ({"decimals": "half_unit"}, 1.0)):
        environment = envhub.make("math_verify", policy=policy)
        await environment.reset(options={"task": Task("What is 100/3, to one digit?", answer="33.3")})
        assert (await environment.step(r"\boxed{\frac{100}{3}}"))[1] == reward


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_solved_by_its_oracle(family: str):
    environment = MathVerifyEnvironment(families=[family])

    async def play() -> None:
        for index in range(6):
            await environment.reset(options={"task": environment.tasks.get("train", index)})
            _, reward, terminated, _, info = await environment.step(environment.oracle())
            assert (reward, terminated, info["components"]) == (1.0, True, {"correct": 1.0})

    asyncio.run(play())


@pytest.mark.parametrize("text", ["", "x" * 100_000, "nan", "1e309", "\x00\x1b[2J", r"\boxed{", r"\boxed{}"])
async def test_junk_pays_nothing(text: str):
    environment = MathVerifyEnvironment()
    await environment.reset(options={"task": environment.tasks.get("train", 0)})
    assert (await environment.step(text))[1] == 0.0


def test_splits_and_seeds_share_no_questions():
    tasks = MathVerifyEnvironment(families=["addition"], levels=[4]).tasks
    sets = [{tasks.get(split, i, seed).prompt for i in range(200)} for split in ("train", "eval") for seed in (1, 2)]
    assert len(set.union(*sets)) > 790


@pytest.mark.parametrize(
    ("value", "gold"),
    [("so it is 6*7\n#### 42", "42"), (r"thus \boxed{\frac{1}{2}}.", r"\frac{1}{2}"), (7, "7"), (" 3.5 ", "3.5")],
)
def test_gold_answers_are_found_in_their_usual_forms(value: object, gold: str):
    assert gold_answer(value) == gold


def test_a_file_of_questions_is_split_and_asked(tmp_path: Path):
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(json.dumps({"problem": f"{i}+1?", "solution": f"#### {i + 1}"}) for i in range(10)))
    tasks = MathVerifyEnvironment(data=file).tasks
    assert (tasks.size("train"), tasks.size("eval")) == (8, 2)
    assert tasks.get("train", 0).answer.isdigit()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"question": "1+1?", "answer": "2"}\n{"question": ', "line 2: not JSON"),
        (b'{"question": "1+1?", "anwser": "2"}\n', "line 1: no column 'answer'.*did you mean 'anwser'"),
        (b'{"question": "1+1?", "answer": "\xff"}\n', "line 1: not UTF-8"),
        (b'{"question": "", "answer": "2"}\n', "line 1: the question is empty"),
        (b"\n\n", "holds no rows"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: bytes, said: str):
    file = tmp_path / "q.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=said):
        _ = MathVerifyEnvironment(data=file).tasks


def test_an_unknown_family_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'addition'"):
        _ = envhub.make("math_verify", families=["adition"]).tasks


def test_all_lines_whose_answers_cannot_be_typed_are_listed(tmp_path: Path):
    file = tmp_path / "q.jsonl"
    answers = ["1", "(2", r"\int x", "3"]
    file.write_text("\n".join(json.dumps({"question": "?", "answer": answer}) for answer in answers))
    with pytest.raises(DataError, match=r"2 gold answers cannot be typed(.|\n)*line 2: (.|\n)*line 3: "):
        _ = MathVerifyEnvironment(data=file).tasks


def test_splits_of_a_file_are_kept_together(tmp_path: Path):
    file = tmp_path / "q.jsonl"
    rows = [{"question": f"{i}?", "answer": i, "split": ("train", "test", "validation")[i % 3]} for i in range(9)]
    file.write_text("\n".join(map(json.dumps, rows)))
    tasks = MathVerifyEnvironment(data=file).tasks
    assert (tasks.size("train"), tasks.size("eval")) == (3, 6)
