"""`envhub unregister`."""

import click

from envhub import registry


@click.command(help="Forget a registered environment. Its files stay.")
@click.argument("environment")
def command(environment: str) -> None:
    gone = registry.unregister(environment)
    click.echo(f"unregistered {gone.id} (it was {gone.target})")
