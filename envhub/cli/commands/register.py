"""`envhub register`."""

from typing import Any

import click

from envhub import registry
from envhub.cli.options import config_option
from envhub.specs import EnvironmentSpec


@click.command(help="Record an environment, so that its name works from any folder. TARGET is a Python file, "
               "file.py:ClassName, a folder, or module:ClassName.")  # fmt: skip
@click.argument("target")
@click.option("--name", help="The id to register it under (default: the environment's own name).")
@click.option("--force", is_flag=True, help="Also hide an environment of an installed package that has this name.")
@config_option("Configuration that goes with the id.")
def command(target: str, name: str | None, force: bool, config: dict[str, Any]) -> None:
    from envhub.check import quick_check

    from_module = ":" in target and not registry.looks_like_path(target)
    found = None if from_module else registry.spec_of_path(target)
    place = target if found is None else found.target
    if name is not None:
        registry.parse_id(name)
    id = name if name is not None else EnvironmentSpec("", place).load().name
    quick_check(EnvironmentSpec(id, place, config))
    before = registry.user_specs().get(id)
    made = registry.register(id, place, config=config, persist=True, force=force)
    if before is not None and before.target != made.target:
        click.echo(f"{id} was {before.target} before")
    click.echo(f"registered {made.id} -> {made.target}\nnext: envhub check {made.id}")
