"""Environments that misbehave, in text worlds and under classic agents alike.

The run ends with a line that says what is wrong, with seed and action, or goes on as if nothing had
been. The same command with the mended world ends as the undisturbed run does.
"""

import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.processes import ended, last_line, said
from fault_matrix.programs import Program, undisturbed

LATEST_STEP = 60
PATIENCE = 120.0
TOLD = r"\((first )?seed \S+, last action .+\)"


class Misbehaving(gym.Wrapper):
    """An environment that goes wrong when variables of the process tell it to.

    In the step that MISBEHAVE_AT numbers, counted over all copies of the process, it does what
    MISBEHAVE names; without that it behaves.
    """

    num_calls = {"step": 0, "reset": 0}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode."""
        return self._told("reset", self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        """Plays an action."""
        return self._told("step", self.env.step(action))

    def _told(self, call: str, result: tuple) -> Any:
        self.num_calls[call] += 1
        fault, number = os.environ.get("MISBEHAVE"), self.num_calls[call]
        if fault is None or (fault in IN_RESET) != (call == "reset"):
            return result
        first = 2 if call == "reset" else int(os.environ["MISBEHAVE_AT"])
        is_due = number == first or (fault in LASTING and number > first)
        return MISBEHAVIOUR[fault](self, result) if is_due else result


def _replaced(place: int, value: Any) -> Any:
    return lambda env, result: (*result[:place], value, *result[place + 1 :])


def _beside(deed: Callable[..., object], *args: Any) -> Any:
    return lambda env, result: (deed(*args), result)[1]


def _raises(env: Misbehaving, result: tuple) -> Any:
    raise ValueError("no such\ncell [bold]$x$ \ud800")


def _recurses(env: Misbehaving, result: tuple) -> Any:
    return _recurses(env, result)


def _other_actions(env: Misbehaving, result: tuple) -> Any:
    env.action_space = env.unwrapped.action_space = gym.spaces.Discrete(1)
    return result


def _prints() -> None:
    print("a \x1b[31mred [bold] line \x00 {}" * 100, flush=True)
    os.write(1, b"\xff\xfe raw bytes\n")


def _outside(env: Misbehaving, result: tuple) -> Any:
    space = env.observation_space
    wrong = space.n + 3 if isinstance(space, gym.spaces.Discrete) else np.zeros(97, np.float32)
    return (wrong, *result[1:])


def _not_a_number(env: Misbehaving, result: tuple) -> Any:
    is_box = isinstance(env.observation_space, gym.spaces.Box)
    return (np.full_like(result[0], np.nan) if is_box else float("nan"), *result[1:])


MISBEHAVIOUR = {
    "raises": _raises,
    "raises in reset": _raises,
    "exits": lambda env, result: sys.exit(0),
    "exits in reset": lambda env, result: sys.exit(0),
    "ends the process": lambda env, result: os._exit(0),
    "hangs": _beside(time.sleep, 1e6),
    "recurses": _recurses,
    "takes memory": lambda env, result: bytearray(1 << 62),
    "NaN reward": _replaced(1, float("nan")),
    "infinite reward": _replaced(1, np.float32("-inf")),
    "huge reward": _replaced(1, 1e308),
    "reward in words": _replaced(1, "1.0"),
    "flags in words": _replaced(2, "no"),
    "info is a list": _replaced(4, []),
    "no truncated": lambda env, result: (*result[:3], result[4]),
    "step gives nothing": lambda env, result: None,
    "reset gives nothing": lambda env, result: None,
    "reset without info": lambda env, result: result[0],
    "observation outside": _outside,
    "observation is NaN": _not_a_number,
    "no observation": _replaced(0, None),
    "other actions": _other_actions,
    "prints": _beside(_prints),
    "leaves threads": _beside(lambda: threading.Thread(target=time.sleep, args=(1e6,)).start()),
    "seeds everything": _beside(lambda: (random.seed(0), np.random.seed(0))),
}
IN_RESET = {"raises in reset", "reset without info", "reset gives nothing", "exits in reset"}
LASTING = {"prints", "seeds everything"}
GOES_ON = {"other actions", "prints", "leaves threads", "seeds everything"}
ENDS_UNHEARD = {"ends the process"}
"""By os._exit, after which nothing of the program runs any more: the next start goes on."""
UNSEEN = {"observation outside", "no observation", "observation is NaN", "other actions"}
"""Within a chain, where nobody looks at observations, they may be anything."""
RUNS_AWAY = {"raises", "raises in reset", "exits", "exits in reset", "hangs"} | ENDS_UNHEARD
NOT_FINITE = {"NaN reward", "infinite reward", "observation is NaN"}
"""Of classic agents, whose line says which copy."""
ROWS = {
    9: sorted(NOT_FINITE),
    13: sorted(RUNS_AWAY),
    15: [fault for fault in MISBEHAVIOUR if fault not in NOT_FINITE | RUNS_AWAY],
}
"""The rows of the matrix."""


def make(inner: str, **kwargs: Any) -> gym.Env:
    """The environment of an id, which may misbehave."""
    return Misbehaving(gym.make(inner, disable_env_checker=True, **kwargs))


gym.register("faults/World-v0", entry_point=make, disable_env_checker=True)


@cache
def in_world(program: Program) -> Program:
    """The program in a world that misbehaves when it is told to."""

    def make(shared: Path, run_dir: Path) -> Any:
        config = program.config(run_dir)
        world = config.environment
        if program.name == "evaluate":  # so that actions are played at all
            config = replace(config, actor=replace(config.actor, decoding="constrained"))
        kwargs = {"inner": world.id, **world.kwargs}
        return replace(
            config,
            environment=replace(world, id="faults/World-v0", kwargs=kwargs),
            run=replace(config.run, timeout_minutes=0.1),
        )

    return replace(program, name=f"{program.name}-in-world", make=make)


def misbehave(faults: Sequence[str], program: Program, number: int, folder: Path) -> Verdict:
    """A run in a world that misbehaves, and the same command once it is mended."""
    program, fault = in_world(program), faults[number]
    undisturbed(program)
    run_dir = folder / "run"
    step = str(random.Random(f"{program.name} {fault}").randint(2, LATEST_STEP))
    code = ended(program.start(run_dir, MISBEHAVE=fault, MISBEHAVE_AT=step), PATIENCE)
    told = said(run_dir)
    if wrong := wrong_with(fault, code, told):
        return bad(wrong, last_line(told))
    if code == 0 and fault not in ENDS_UNHEARD:
        first = program.verdict(run_dir, code)
        if not first.ok:
            return first
    found = program.goes_on(run_dir, PATIENCE)
    return found if not found.ok or code == 0 else good(f"exit {code}, then equal")


def wrong_with(fault: str, code: int | None, told: str) -> str | None:
    """What is wrong with the end of a run in such a world."""
    if code is None:
        return "hung"
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
