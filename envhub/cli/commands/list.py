"""`envhub list`."""

import json
from typing import Any

import click

from envhub import plugins
from envhub.errors import UserError
from envhub.registry import all_specs

_KINDS = ("environments", "rewards", "algorithms", "engines", "parsers")


@click.command()
@click.option("--kind", type=click.Choice(_KINDS), help="Only one kind.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(kind: str | None, as_json: bool) -> None:
    rows: dict[str, list[dict[str, str]]] = {}
    for name in (kind,) if kind else _KINDS:
        rows[name] = _environments() if name == "environments" else _plugins(f"envhub.{name}")
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for name, found in rows.items():
        _print(name, found)


def _environments() -> list[dict[str, str]]:
    out = []
    for id, spec in sorted(all_specs().items()):
        try:
            text = (spec.load().__doc__ or "").strip().partition("\n")[0]
        except UserError as problem:
            text = f"does not import: {problem}"
        out.append({"name": id, "source": spec.source, "about": text})
    return out


def _plugins(group: str) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "source": "bundled" if plugins.owner_of(point) == "envhub" else plugins.owner_of(point),
            "about": point.value,
        }
        for name, point in sorted(plugins.entries(group).items())
    ]


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from envhub.cli.tables import show

    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False, padding=(0, 2))
    for row in rows:
        table.add_row(row["name"], row["source"], row["about"])
    show(table, "")
