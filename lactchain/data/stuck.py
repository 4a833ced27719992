"""How episodes go wrong: into walls, back and forth, round in circles.

A return alone does not tell a policy that is slow from one that is stuck.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from lactchain.types import Trajectory

LOOP_REPEATS = 3
"""The same answer to the same state so often within an episode is called a loop."""


def stuck_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Shares, each 0 where nothing can be counted.

    `bump_rate`: of the executed actions, those that left the state as it was. `revisit_rate`: of
    all answers, those that led back to a state in which the episode had been before the one it was
    in (standing still is a bump, and no revisit). `loop_rate`: of the episodes, those in which the
    same state got the same answer `LOOP_REPEATS` times.

    A state is `info["state"]`; in worlds that have none, the observation.
    """
    bumped = [bump for t in trajectories for info in t.infos for bump in info.get("bumped", ())]
    revisits = [revisit for t in trajectories for revisit in _revisits(t)]
    return {
        "bump_rate": _share(bumped),
        "revisit_rate": _share(revisits),
        "loop_rate": _share([_loops(t) for t in trajectories]),
    }


def _states(trajectory: Trajectory) -> list[str]:
    """What the T + 1 states of an episode are told apart by."""
    return [
        observation if info.get("state") is None else json.dumps(info["state"], sort_keys=True)
        for observation, info in zip(trajectory.observations, trajectory.infos, strict=True)
    ]


def _revisits(trajectory: Trajectory) -> Iterator[bool]:
    """For each answer, whether it led back to an earlier state."""
    states = _states(trajectory)
    earlier: set[str] = set()
    for before, after in zip(states, states[1:], strict=False):
        earlier.add(before)
        yield after != before and after in earlier


def _loops(trajectory: Trajectory) -> bool:
    states = _states(trajectory)
    answers = (action.text for action in trajectory.actions)
    repeats = Counter(zip(states, answers, strict=False))
    return max(repeats.values(), default=0) >= LOOP_REPEATS


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
