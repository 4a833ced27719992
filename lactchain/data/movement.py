"""How episodes go wrong: into walls, back and forth, round in circles.

A return alone does not tell a policy that is slow from one that is stuck.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from lactchain.types import Trajectory

LOOP_REPEATS = 3
"""The same completion to the same state so often within an episode is called a loop."""


def movement_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Shares, each 0 where nothing can be counted.

    `bump_rate`: of the executed actions, those that left the state as it was. `revisit_rate`: of
    all completions, those that led back to a state in which the episode had been before the one it
    was in (standing still is a bump, and no revisit). `loop_rate`: of the episodes, those in which
    the same state got the same completion `LOOP_REPEATS` times.

    A state is `info["state"]`; in worlds that have none, the observation.
    """
    bumps = [bump for t in trajectories for info in t.infos for bump in info.get("bumped", ())]
    ways = [_states(t) for t in trajectories]
    return {
        "bump_rate": _share(bumps),
        "revisit_rate": _share([revisit for states in ways for revisit in _revisits(states)]),
        "loop_rate": _share(list(map(loops, trajectories))),
    }


def endless_rate(trajectories: Sequence[Trajectory], max_chain_length: int) -> float:
    """Share of the episodes that failed though every chain was as long as it may be.

    0 where chains have a single action.
    """
    if max_chain_length == 1:
        return 0.0
    return _share([_is_endless(t, max_chain_length) for t in trajectories])


def _is_endless(trajectory: Trajectory, max_chain_length: int) -> bool:
    *_, last = trajectory.infos
    lengths = [len(i["executed"]) for i in trajectory.infos[1:] if not i["invalid_action"]]
    return bool(lengths) and min(lengths) == max_chain_length and not last["success"]


def _states(trajectory: Trajectory) -> list[str]:
    """What the T + 1 states of an episode are told apart by."""
    return [
        observation if info.get("state") is None else repr(info["state"])
        for observation, info in zip(trajectory.observations, trajectory.infos, strict=True)
    ]


def _revisits(states: Sequence[str]) -> Iterator[bool]:
    """For each completion, whether it led back to an earlier state."""
    earlier: set[str] = set()
    for before, after in pairwise(states):
        earlier.add(before)
        yield after != before and after in earlier


def loops(trajectory: Trajectory) -> bool:
    """Whether the same state got the same completion `LOOP_REPEATS` times."""
    said = (action.text for action in trajectory.actions)
    repeats = Counter(zip(_states(trajectory), said, strict=False))
    return max(repeats.values(), default=0) >= LOOP_REPEATS


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
