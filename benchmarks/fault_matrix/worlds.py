"""Environments that misbehave in many ways, in text worlds and under classic agents alike.

The run ends with a line that says what is wrong, with seed and action, or goes on as if nothing had
been. The same command with the mended world ends as the undisturbed run does.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from fault_matrix.cases import Case, Verdict
from fault_matrix.done import done, kept
from fault_matrix.misbehaving import MISBEHAVIOUR
from fault_matrix.programs import (
    PROGRAMS,
    Program,
    ended,
    finished,
    last_line,
    log_of,
    prepare,
    start,
    verdict,
)

TITLE = "environments that misbehave"
LATEST_STEP = 60
PATIENCE = 120.0
NAMES = ("collect_rollouts", "evaluate", "make_preferences", "train_ppo", "train_dqn")

TOLD = r"\((first )?seed \S+, last action .+\)"
GOES_ON = {"other actions", "prints", "leaves threads", "seeds everything"}
ENDS_UNHEARD = {"ends the process"}
"""By os._exit, after which nothing of the program runs any more: the next start goes on."""
UNSEEN = {"observation outside", "no observation", "observation is NaN", "other actions"}
"""Within a chain, where nobody looks at observations, they may be anything."""
NOT_FINITE = {"NaN reward", "infinite reward", "observation is NaN"}
"""Of classic agents, whose line says which copy."""


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """Each misbehaviour in each program, in a step of its own."""
    prepare(shared)
    programs = [_in_world(PROGRAMS[name]) for name in NAMES if name in PROGRAMS]
    number = max(1, round(len(MISBEHAVIOUR) * min(1.0, scale)))
    for fault in [*MISBEHAVIOUR][:: max(1, len(MISBEHAVIOUR) // number)]:
        for program in programs:
            strike = partial(misbehave, program, shared, fault)
            row = 9 if fault in NOT_FINITE else 13 if fault in RUNS_AWAY else 15
            yield Case(row, program.script, f"{program.script}-{fault}", strike)


RUNS_AWAY = {"raises", "raises in reset", "exits", "exits in reset", "hangs"} | ENDS_UNHEARD


def _in_world(program: Program) -> Program:
    """The program in a world that misbehaves when it is told to."""

    def make(shared: Path, run_dir: Path) -> Any:
        config = program.config(shared, run_dir)
        world = config.environment
        kwargs = {"inner": world.id, **world.kwargs}
        changes = {}
        if program.script == "evaluate":  # so that actions are played at all
            changes["actor"] = replace(config.actor, decoding="constrained")
        return replace(
            config,
            **changes,
            environment=replace(world, id="faults/World-v0", kwargs=kwargs),
            run=replace(config.run, timeout_minutes=0.1),
        )

    return replace(program, name=f"{program.name}-in-world", make=make)


def misbehave(program: Program, shared: Path, fault: str, folder: Path) -> Verdict:
    """A run in a world that misbehaves, and the same command once it is mended."""
    finished(program, shared)
    run_dir = folder / "run"
    config, at = program.config(shared, run_dir), Random(f"{program.name} {fault}")
    step = str(at.randint(2, LATEST_STEP))
    code = ended(start(program, config, MISBEHAVE=fault, MISBEHAVE_AT=step), PATIENCE)
    if code is None:
        return Verdict(False, "hung", last_line(run_dir))
    told = log_of(run_dir).read_text(errors="replace")
    if wrong := _wrong(fault, code, told):
        return Verdict(False, wrong, last_line(run_dir))
    if code == 0 and fault not in ENDS_UNHEARD:
        first = verdict(program, shared, run_dir, code)
        if not first.ok:
            return first
    before = done(run_dir)
    again = ended(start(program, config), PATIENCE)
    after = kept(before, run_dir, verdict(program, shared, run_dir, again))
    return after if not after.ok or code == 0 else Verdict(True, f"exit {code}, then equal")


def _wrong(fault: str, code: int, told: str) -> str | None:
    """What is wrong with the end of a run in such a world."""
    if "Traceback" in told:
        return "stack trace"
    if code == 0 and fault in GOES_ON | ENDS_UNHEARD | UNSEEN or fault in GOES_ON - UNSEEN:
        return None if code == 0 else f"exit {code}"
    if code not in ({4, 6} if fault in NOT_FINITE else {6}):
        return f"exit {code}"
    lines = [line for line in told.splitlines() if line.startswith("error: ")]
    if len(lines) != 1 or not re.search(TOLD, lines[0]):
        return "no line that tells of seed and action"
    return None
