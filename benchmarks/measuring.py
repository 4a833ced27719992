"""What benchmarks share: command lines, turns that are timed, figures over seeds, tables, pages."""

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lactchain_extras.comparing import student

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = ROOT / "benchmarks/RESULTS_ARCHIVE.md"


def command_line(doc: str) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of a benchmark, line for line."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as a script's command line has them."""
    texts = {k: str(v) if isinstance(v, str | Path) else json.dumps(v) for k, v in settings.items()}
    return [word for key, text in texts.items() for word in (f"--{key}", text)]


def environment(*folders: Path) -> dict[str, str]:
    """Variables of a process that runs a script of this checkout alone, on one thread.

    Args:
        folders: of modules from outside of the package.
    """
    path = os.pathsep.join(map(str, filter(None, (ROOT, *folders, os.environ.get("PYTHONPATH")))))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def summary(run_dir: Path) -> dict[str, Any]:
    """What a finished run reports."""
    return json.loads((run_dir / "summary.json").read_text("utf-8"))


# --- time -----------------------------------------------------------------------------------------


def cpu_seconds(work: Callable[[], object]) -> float:
    """What a call takes of the processor (`time.process_time`)."""
    began = time.process_time()
    work()
    return time.process_time() - began


def in_turns(
    sides: Mapping[str, Callable[[], Any]],
    repeats: int,
    measure: Callable[[Callable[[], Any]], float] = cpu_seconds,
) -> dict[str, list[float]]:
    """A figure of each side in each repeat: all sides take their turn before one has the next."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            found[name].append(measure(side))
    return found


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios within a repeat."""
    return statistics.median(a / b for a, b in zip(values, others, strict=True))


# --- figures over seeds ---------------------------------------------------------------------------


def shown(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Mean and interval as text."""
    mean, half = student(values)
    return form.format(mean) + ("" if np.isnan(half) else f" ± {form.format(half)}")


def interquartile_mean(scores: Sequence[float]) -> float:
    """Mean of the middle half of the scores, robust as the median, efficient as the mean.

    Quarters that are no whole number of scores cut one in part. Source: Agarwal et al. 2021, "Deep
    reinforcement learning at the edge of the statistical precipice".
    """
    ordered = np.sort(np.asarray(scores, dtype=float))
    edges = np.clip(np.arange(len(ordered) + 1) / len(ordered), 0.25, 0.75)
    weights = np.diff(edges)
    return float(ordered @ weights / weights.sum())


def bootstrap_interval(
    scores: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = interquartile_mean,
    num_samples: int = 2000,
) -> tuple[float, float]:
    """95 % percentile interval of a statistic over seeds, by the bootstrap (Efron 1979)."""
    values, rng = np.asarray(scores, dtype=float), np.random.default_rng(0)
    draws = values[rng.integers(len(values), size=(num_samples, len(values)))]
    low, high = np.percentile([statistic(draw) for draw in draws], [2.5, 97.5])
    return float(low), float(high)


# --- tables and pages -----------------------------------------------------------------------------


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table."""
    return [
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]


def put_between(page: Path, begin: str, end: str, lines: Sequence[str]) -> None:
    """Puts lines between two marks of a page, in the place of those that stand there."""
    before, _, rest = page.read_text("utf-8").partition(begin)
    text = "\n".join([begin, *lines, end])
    page.write_text(before + text + rest.partition(end)[2], "utf-8")


def append_section(title: str, lines: Iterable[str]) -> None:
    """Adds a dated section to the archive, with what it takes to make it again."""
    heading = f"## {title}, {datetime.date.today()}"
    with ARCHIVE.open("a", encoding="utf-8") as file:
        file.write("\n".join(["", heading, "", provenance(), "", *lines, ""]))


def provenance() -> str:
    """By which source and command, and on what, figures were measured."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    command = f"python {shlex.join(sys.argv)}".replace(f"{ROOT}/", "")
    return f"Commit {commit}, `{command}`, {processor()}, load {os.getloadavg()[0]:.0f}."


def processor() -> str:
    """What the machine computes with; ratios differ between makers."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return f"{len(names)} x {names[0]}" if names else platform.processor()
