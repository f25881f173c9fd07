"""`envhub info`."""

import inspect
from pathlib import Path
from typing import Any

import click

from envhub.cli.options import config_option
from envhub.driver import Driver
from envhub.errors import UserError
from envhub.registry import spec as find_spec
from envhub.strict_json import dumps


@click.command()
@click.argument("environment")
@config_option()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(environment: str, config: dict[str, Any], as_json: bool) -> None:
    found = find_spec(environment)
    cls = found.load()
    about: dict[str, Any] = {
        "id": found.id,
        "source": found.source,
        "target": found.target,
        "about": inspect.getdoc(cls) or "",
        "configuration": {
            name: {"default": None if field.is_required() else field.get_default(call_default_factory=True),
                   "required": field.is_required(), "type": str(field.annotation).replace("typing.", "")}
            for name, field in cls.Config.model_fields.items()
        },
        "limits": cls.limits.model_dump(),
        "isolation": cls.isolation,
    }  # fmt: skip
    try:
        driver = Driver(found, config)
    except UserError as problem:
        about["tasks"] = f"need a configuration: {problem}"
    else:
        about["tasks"] = {split: driver.tasks.size(split) or "endless" for split in driver.tasks.splits}
        about["rewards"] = {r.name: r.weight for r in driver.rubric.rewards} if driver.rubric is not None else {}
        about["oracle"] = driver.has_oracle
    card = Path(inspect.getfile(cls)).parent / "README.md"
    if card.is_file():
        about["card"] = str(card)
    if as_json:
        click.echo(dumps(about, indent=2))
    else:
        _print(about)


def _print(about: dict[str, Any]) -> None:
    click.secho(about["id"], bold=True, nl=False)
    click.echo(f"  ({about['source']}: {about['target']})\n\n{about['about']}\n")
    click.echo("configuration")
    for name, field in about["configuration"].items():
        default = "required" if field["required"] else f"default {dumps(field['default'])}"
        click.echo(f"  {name}: {default}")
    if not about["configuration"]:
        click.echo("  none")
    tasks = about["tasks"]
    text = ", ".join(f"{split} {size}" for split, size in tasks.items()) if isinstance(tasks, dict) else tasks
    click.echo(f"tasks       {text}")
    if about.get("rewards"):
        click.echo("rewards     " + ", ".join(f"{name} x {weight:g}" for name, weight in about["rewards"].items()))
    click.echo(
        "limits      " + ", ".join(f"{name} {value}" for name, value in about["limits"].items() if value is not None)
    )
    if "oracle" in about:
        click.echo(f"oracle      {'yes' if about['oracle'] else 'no'}")
    if "card" in about:
        click.echo(f"card        {about['card']}")
