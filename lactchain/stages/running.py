"""What every stage does around its own work: one run folder, which the same command continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lactchain import distributed
from lactchain.console import figures
from lactchain.inspection.report import write_report
from lactchain.process import is_dry_run, seed_everything
from lactchain.run import Run
from lactchain.stages.sizing import require_numbers

if TYPE_CHECKING:
    from lactchain.budget import Phase

Phases = Iterator["Phase"]
"""What of a stage is estimated before a model is loaded (`lactchain.budget`)."""


def run_stage(
    title: str,
    config: Any,
    work: Callable[[Any, Run], dict[str, Any]],
    memory: Callable[[Any], Phases] | None = None,
    report: bool = False,
    fills_nulls: bool = False,
) -> dict[str, Any]:
    """Does the work of a stage in its run folder, unless that is done, and prints its figures.

    Args:
        title: of the table of figures.
        config: of the stage, with its folder in `run`.
        work: makes the summary, and everything else in the folder.
        memory: the phases that are estimated first, and printed instead of all work in a dry run.
        report: whether a page is written of the finished folder.
        fills_nulls: whether the work puts numbers in the place of nulls (`stages.sizing`).

    Returns:
        The summary; nothing for a dry run.

    Raises:
        ConfigError: the folder is another run's, or the work does not fit this device.
    """
    if not fills_nulls:
        require_numbers(config)
    if memory is not None and is_dry_run():
        from lactchain.budget import print_budget

        return print_budget(memory(config))
    with Run.of(config) as run:
        if run.finished:
            return run.summary
        if memory is not None:
            from lactchain.budget import check_budget

            check_budget(config, memory)
        seed_everything(config.run.seed, config.run.threads)
        summary = work(config, run)
        run.finish(summary)
    if report and distributed.is_main():
        write_report(run.directory)
    figures(title, summary)
    return summary
