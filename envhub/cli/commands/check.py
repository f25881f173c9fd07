"""`envhub check`."""

from typing import Any

import click

from envhub import task_host
from envhub.cli.options import config_option
from envhub.registry import spec as find_spec
from envhub.strict_json import dumps


@click.command(help="Examine an environment and say what is wrong with it. Exit code 1 when something failed.")
@click.argument("environment")
@config_option()
@click.option("--episodes", default=4, show_default=True, type=click.IntRange(1), help="Episodes of each check.")
@click.option("--step-seconds", type=click.FloatRange(0, min_open=True), help="Deadline of a reset or step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(environment: str, config: dict[str, Any], episodes: int, step_seconds: float | None, as_json: bool) -> int:
    from envhub.check import CheckResult, check_environment

    spec = find_spec(environment)

    def show(result: CheckResult) -> None:
        if as_json:
            return
        colours = {"pass": "green", "fail": "red", "warn": "yellow", "skip": "blue"}
        click.secho(f"{result.status:5}", fg=colours[result.status], nl=False)
        click.echo(f" {result.name}" + (f": {result.detail}" if result.detail else ""))
        if result.remedy and result.status in ("fail", "warn"):
            click.echo(f"      to do: {result.remedy}")

    report = task_host.run(
        check_environment(spec, config=config, episodes=episodes, step_seconds=step_seconds, on_result=show)
    )
    if as_json:
        click.echo(dumps(report.to_dict(), indent=2))
    else:
        failed = sum(result.status == "fail" for result in report.results)
        click.echo(
            f"{spec.id}: " + ("all checks passed" if report.ok else f"{failed} of {len(report.results)} checks failed")
        )
    return 0 if report.ok else 1
