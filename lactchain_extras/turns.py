"""A table of a round's turns in trackers that show tables: prompt, answer, reward and value."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lactchain.config.settings import RunConfig
from lactchain.runs.run import OptionalTracker

COLUMNS = ("state", "prompt", "answer", "reward", "value", "advantage", "success", "return")
PROJECT = "lactchain"

Row = Sequence[Any]


def log_turns(run: RunConfig, number: int, answers: Sequence[Mapping[str, Any]]) -> None:
    """Sends the answers of a round to those of the run's trackers that show tables.

    A tracker that fails costs a warning.

    Args:
        number: of the round, 0 before the first.
        answers: rows as `answers.parquet` has them (`lactchain_extras.explorer.inspections`).
    """
    rows = [
        [a["state"], a["text"], a["completion"], sum(a["rewards"])]
        + [a[name] for name in ("value", "advantage", "success", "return")]
        for a in answers
    ]
    key, folder = f"turns/round_{number}", Path(run.run_dir).absolute()
    for name in sorted(SENDERS.keys() & set(run.report_to)):
        OptionalTracker(partial(SENDERS[name], folder, key, rows), name)


def _to_wandb(folder: Path, key: str, rows: Sequence[Row]) -> None:
    """Into the run that the trainings of this process log to, or one of its own."""
    import wandb

    run = wandb.run or wandb.init(project=PROJECT, name=folder.name, dir=str(folder))
    run.log({key: wandb.Table(columns=list(COLUMNS), data=list(rows))})


def _to_trackio(folder: Path, key: str, rows: Sequence[Row]) -> None:
    import pandas
    import trackio

    trackio.init(project=PROJECT, name=folder.name, resume="allow", embed=False)
    trackio.log({key: trackio.Table(dataframe=pandas.DataFrame(rows, columns=list(COLUMNS)))})
    trackio.finish()


SENDERS = {"wandb": _to_wandb, "trackio": _to_trackio}
