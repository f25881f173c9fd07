"""`envhub init`."""

from pathlib import Path

import click


@click.command(help="Write a new environment as a complete package: code, test, README card and pyproject.toml.")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="Where to write it (default: here).")
def command(name: str, folder: Path) -> None:
    from envhub.cli.template import write_package

    target = folder / name
    for path in write_package(folder, name):
        click.echo(f"wrote {path}")
    click.echo(f"next: envhub register {target} && envhub check {target.name.replace('-', '_')}")
