"""What every stage does around its own work: one run folder, which the same command continues.

A page shows the folder meanwhile; it never holds up the run.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lactchain import plugins
from lactchain.errors import ConfigError
from lactchain.runs import distributed
from lactchain.runs.console import console, figures, nothing_under_way, plain, under_way
from lactchain.runs.process import is_dry_run, seed_everything
from lactchain.runs.run import Run
from lactchain.stages.sizing import RULES
from lactchain.storage.files import in_bytes, size_of

NOTHING_DONE = (
    "the settings are in order; no memory is estimated of this command, and nothing was done"
)
LIVE_SHARE = 0.02
"""What the page may cost of a run's time: where it costs more, it tells the stage alone."""

log = logging.getLogger(__name__)


class BatchSettings(NamedTuple):
    """The settings of a batch, dotted."""

    rows: str  # how many; of a `batch_size` the model learns, unless it is frozen
    tokens: str  # the longest text of the model, whose setting it is
    texts: int = 1  # completions behind each prompt
    heads: int = 0  # of token values, over the vocabulary; of two, a target has as many


@contextmanager
def enough_memory(title: str, batches: Sequence[BatchSettings]) -> Iterator[None]:
    """Names the settings to lower where the device has no more memory, in a `ConfigError`."""
    try:
        yield
    except RuntimeError as error:
        from lactchain.models.runtime import device, is_out_of_memory

        if not batches or not is_out_of_memory(error):
            raise
        raise ConfigError(f"{title}: no memory is left on {device()}; {mend(batches)}") from error


def mend(batches: Sequence[BatchSettings]) -> str:
    """What to lower."""
    keys = [batch.rows for batch in batches] + [batch.tokens for batch in batches]
    return f"lower {' or '.join(dict.fromkeys(filter(None, keys)))}"


def dry_run(config: Any, batches: Sequence[BatchSettings]) -> dict[str, Any]:
    """Makes nothing; an add-on says what each batch would take of memory."""
    if (print_memory := plugins.add_on("memory")) is None:
        console.print(NOTHING_DONE)
    else:
        print_memory(config, batches)
    return {}


@contextmanager
def stage(
    title: str,
    config: Any,
    batches: Sequence[BatchSettings] = (),
    report: bool = False,
    fills_nulls: bool = False,
    closing: Callable[[Any, dict[str, Any]], None] | None = None,
) -> Iterator[Run]:
    """Opens the run folder of a stage for its work, unless that is done, and prints its figures.

    The work is done where the run has no `outcome`. A stage that is part of another one prints
    nothing: it is a word on the live line. A dry run has an outcome, which is empty. `ConfigError`
    where the folder is another run's, or the device has no more memory.

    Args:
        title: of the table of figures, and on the live line.
        config: of the stage, with its folder in `run`.
        batches: what takes memory, which a dry run prints instead of all work.
        report: whether a page is written of the finished folder.
        fills_nulls: whether the work puts numbers in the place of nulls (`stages.sizing`).
        closing: prints what people see at the end; None: the figures.
    """
    alone = nothing_under_way()
    if not fills_nulls:
        require_numbers(config)
    if is_dry_run():
        run = Run(Path(config.run.run_dir), {"run_id": ""}, lock=None)  # its folder is not made
        run.outcome = dry_run(config, batches)
        yield run
        return
    seed_everything(config.run.seed, config.run.threads)  # before the folder says how many threads
    with Run.of(config) as run, under_way(title):
        if run.finished:
            run.outcome = run.summary
        else:
            note_servers(config, run)
        with enough_memory(title, batches):
            yield run
        if report and distributed.is_main() and not _tells_the_end(run.directory):
            write_page(run.directory)
    if alone and closing is not None:
        closing(config, run.outcome)
    elif alone:
        figures(title, run.outcome)
        show_place(config)


def require_numbers(config: Any, prefix: str = "") -> None:
    """Refuses nulls that no rule has filled, by a `ConfigError` that names the first."""
    names = {key.split(".")[-1] for key in RULES}
    for item in fields(config):
        key, value = f"{prefix}{item.name}", getattr(config, item.name)
        if value is None and item.name in names and item.default is not None:
            raise ConfigError(
                f"{key}: expected a number, got null, which stands for one only in run_pipeline,"
                " and only where docs/configuration.md has a rule; give a number"
            )
        if is_dataclass(value):
            require_numbers(value, f"{key}.")


def note_servers(config: Any, run: Run) -> None:
    """Writes down which engines generate for a run, where some do."""
    served = getattr(getattr(config, "actor", None), "served", None)
    if served is not None and served.dialect != "text" and distributed.is_main():
        plugins.required("engines", "actor.served").record(served, run)


def _tells_the_end(run_dir: Path) -> bool:
    """Whether the page is newer than the summary; a kill between the two leaves an older one."""
    page, end = run_dir / "report.html", run_dir / "summary.json"
    return page.is_file() and page.stat().st_mtime_ns >= end.stat().st_mtime_ns


def show_place(config: Any) -> None:
    """Prints where a run's folder is, and what it takes on the disk."""
    folder = config.run.run_dir
    size = in_bytes(size_of(Path(folder)))
    console.print(plain(f"everything is in {folder} ({size})"), soft_wrap=True)


def write_page(run_dir: str | Path, stage: str = "", anew: bool = True) -> None:
    """Draws a run, or mends what a page tells of how far it is; failing costs a warning."""
    try:
        plugins.call("page", run_dir, under_way=stage, anew=anew)
    except Exception as error:  # noqa: BLE001  - of whatever kind: the run is no part of it
        log.warning("%s: the page is left as it was: %s", run_dir, error)


class LivePage:
    """The page of a run under way, written when a stage begins: anew, while that costs little."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._began, self._spent = run_dir, time.perf_counter(), 0.0

    def begin(self, stage: str) -> None:
        """Shows what there is so far, and that a stage is under way."""
        start = time.perf_counter()
        is_cheap = self._spent <= LIVE_SHARE * (start - self._began)
        write_page(self._run_dir, stage, is_cheap)
        self._spent += time.perf_counter() - start
