"""`envhub doctor`."""

import click


@click.command()
@click.option("--repair", is_flag=True, help="First repair what can be repaired here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(repair: bool, as_json: bool) -> int:
    from envhub.cli.doctor import doctor_command

    return doctor_command(repair, as_json)
