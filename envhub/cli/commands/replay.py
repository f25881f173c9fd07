"""`envhub replay`."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from envhub import task_host
from envhub.errors import UserError
from envhub.records import RolloutStore, read_rollouts
from envhub.rollout import Rollout


@click.command(help="Run recorded rollouts again, and report the first step that differs. RECORD is a run folder, a "
               "rollouts.jsonl or a rollouts.sqlite. Exit code 1 when one differs.")  # fmt: skip
@click.argument("record", type=click.Path(path_type=Path))
@click.argument("rollouts", nargs=-1)
@click.option("--most", default=0, type=click.IntRange(0), help="Replay at most so many (0: all).")
def command(record: Path, rollouts: tuple[str, ...], most: int) -> int:
    return task_host.run(_replay(record, rollouts, most))


async def _replay(record: Path, rollouts: tuple[str, ...], most: int) -> int:
    from envhub.replay import replay

    differing = count = 0
    for rollout in islice(_chosen(record, rollouts), most or None):
        report = await replay(rollout)
        count += 1
        name = f"{rollout.id} ({rollout.task.id})"
        changed = "; the environment's source has changed since" if report.source_changed else ""
        difference = report.first_difference
        if difference is None:
            click.echo(f"same     {name}: {report.turns} turns{changed}")
            continue
        differing += 1
        where = "the opening" if difference.turn < 0 else f"turn {difference.turn}"
        click.echo(f"differs  {name}: {difference.what} of {where}{changed}")
        click.echo(f"         recorded: {difference.recorded}\n         replayed: {difference.replayed}")
    if not count:
        raise UserError(f"{record} holds no rollouts")
    click.echo(f"{count - differing} of {count} rollouts are the same")
    return 1 if differing else 0


def _chosen(record: Path, ids: tuple[str, ...]) -> Iterator[Rollout]:
    path = record
    if record.is_dir():
        path = next(
            (record / n for n in ("rollouts.jsonl", "rollouts.sqlite") if (record / n).is_file()),
            record / "rollouts.jsonl",
        )
    if path.suffix == ".sqlite":
        with RolloutStore(path, read_only=True) as store:
            yield from (store.get(id) for id in ids) if ids else store.iterate()
        return
    found = {rollout.id: rollout for rollout in read_rollouts(path)}
    for id in ids:
        matches = [rollout for key, rollout in found.items() if key.startswith(id)]
        if len(matches) != 1:
            raise UserError(f"{len(matches)} rollouts in {path} begin with {id!r}")
        yield matches[0]
    if not ids:
        yield from found.values()
