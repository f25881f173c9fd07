"""`envhub play`: a person is the agent."""

from typing import Any

import click

from envhub import task_host
from envhub.cli.options import config_option
from envhub.driver import Driver
from envhub.errors import ModelFault
from envhub.messages import Action, Observation, ToolCall
from envhub.offload import ThreadHost
from envhub.registry import spec as find_spec
from envhub.strict_json import loads

_PATIENCE = 7 * 24 * 3600.0
_COMMANDS = ("/oracle", "/quit", "/call ")
_HELP = (
    "Type your answer and press return. For several lines, put a line of three quotes before and after them.\n"
    "/oracle plays the environment's own answer, /call TOOL {JSON} calls a tool, /quit ends."
)


@click.command(help="Be the agent: play an environment in the terminal.\n\n" + _HELP)
@click.argument("environment")
@config_option()
@click.option("--split", default="train", show_default=True, help="Split of the task set.")
@click.option("--index", default=0, show_default=True, type=click.IntRange(0), help="Which task of the split.")
@click.option("--seed", default=0, show_default=True, type=int, help="Data seed.")
def command(environment: str, config: dict[str, Any], split: str, index: int, seed: int) -> None:
    task_host.run(_play(Driver(find_spec(environment), config), split, index, seed))


async def _play(driver: Driver, split: str, index: int, seed: int) -> None:
    total, turns = 0.0, 0
    driver.step_seconds = driver.limits.step_seconds
    reader = ThreadHost("envhub-play")  # a daemon thread: an interrupt does not wait for the line that it reads
    try:
        task = driver.tasks.get(split, index, seed)
    except IndexError as problem:
        raise click.UsageError(str(problem)) from None
    try:
        observation, _ = await driver.reset(task)
        click.echo(_HELP + "\n")
        _show(observation)
        while turns < driver.limits.max_turns:
            action = await reader.call(_read, turns, deadline=_PATIENCE, what="the person")
            if action is None:
                break
            if action == "/oracle":
                answer = await driver.oracle()
                if answer is None:
                    click.echo("This environment knows no answer here.")
                    continue
                action = answer
                click.secho(answer.text, fg="cyan")
            turns += 1
            try:
                result = await driver.step(action if isinstance(action, Action) else Action(action))
            except ModelFault as problem:
                click.echo(f"The episode ends: {problem}")
                break
            total += result.reward
            _show(result.observation)
            click.secho(f"[reward {result.reward:g}]", fg="yellow")
            if result.terminated or result.truncated:
                click.echo("terminated" if result.terminated else "truncated by the environment")
                break
        else:
            click.echo(f"truncated: the limit is {driver.limits.max_turns} turns")
        click.secho(f"total reward {total:g} in {turns} turns", bold=True)
    finally:
        reader.close()
        await driver.close()


def _show(observation: Observation) -> None:
    for message in observation.messages:
        click.secho(f"{message.role}: ", fg="green", nl=False)
        click.echo(message.text + "".join(f" <image of {len(image.data)} bytes>" for image in message.images))
    for tool in observation.tools or ():
        click.echo(f"tool {tool.name}{list(tool.parameters.get('properties', {}))}: {tool.description}")


def _read(turn: int) -> str | Action | None:
    """The person's answer, None at the end of input or for /quit."""
    try:
        line = input(f"[{turn}] > ")
        while line.startswith("/") and not line.startswith(_COMMANDS):
            click.echo(f"There is no {line.split()[0]}; there are {', '.join(map(str.strip, _COMMANDS))}.")
            line = input(f"[{turn}] > ")
        if line.strip() == '"""':
            lines = []
            while (line := input()) != '"""':
                lines.append(line)
            return "\n".join(lines)
    except EOFError:
        return None
    if line.strip() == "/quit":
        return None
    if line.startswith("/call "):
        _, name, *rest = line.split(" ", 2)
        raw = rest[0] if rest else "{}"
        try:
            arguments = loads(raw)
        except ValueError as problem:
            return Action(tool_calls=(ToolCall("call_0", name, None, raw, str(problem)),))
        if not isinstance(arguments, dict):
            return Action(tool_calls=(ToolCall("call_0", name, None, raw, "arguments are not a JSON object"),))
        return Action(tool_calls=(ToolCall("call_0", name, arguments, raw),))
    return line.strip() if line.strip() == "/oracle" else line
