"""Tiny environments with known values, each of which one common fault of agents gives away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
from gymnasium import spaces


@dataclass(frozen=True)
class Probe:
    """A chain of states, in which actions change nothing.

    Attributes:
        fault: what a wrong value says about an agent.
        next_state: the state after each state.
        rewards: of leaving each state.
        terminated: whether leaving a state ends the episode.
        truncated: whether leaving a state is where the time limit cuts.
        starts: the states that episodes begin in, each as often.
        gamma: discount under which `values` hold.
        values: of the states under it; NaN for one that no episode goes on from.
        max_steps: time limit besides; None: there is none.
    """

    fault: str
    next_state: tuple[int, ...]
    rewards: tuple[float, ...]
    terminated: tuple[bool, ...]
    truncated: tuple[bool, ...]
    starts: tuple[int, ...]
    gamma: float
    values: tuple[float, ...]
    max_steps: int | None = None


PROBES: dict[str, Probe] = {
    "termination": Probe(
        "a terminal state is given a value",
        (0,), (1.0,), (True,), (False,), (0,), 0.5, (1.0,),
    ),
    "truncation": Probe(
        "a time limit is taken for an ending",
        (0,), (1.0,), (False,), (False,), (0,), 0.5, (2.0,), max_steps=4,
    ),
    # What the episode ends on looks like state 1, and is terminal all the same.
    "autoreset": Probe(
        "the row on which a vector environment resets is learnt from",
        (1, 1), (0.0, 1.0), (False, True), (False, False), (0,), 0.5, (0.5, 1.0),
    ),
    # Cut on entering state 3, which is worth 4: the next episode's start is worth something else.
    "successor": Probe(
        "the successor of a last step is another episode's start, or another row of the ring",
        (1, 2, 3, 3), (0.0, 0.0, 0.0, 4.0), (False, False, False, True),
        (False, False, True, False), (0, 3), 0.5, (0.5, 1.0, 2.0, 4.0),
    ),
    "credit": Probe(
        "rewards or ends of episodes are credited a step too early or too late",
        (1, 2, 2), (0.0, 0.0, 1.0), (False, False, True), (False,) * 3, (0,), 0.5,
        (0.25, 0.5, 1.0),
    ),
}  # fmt: skip


class ProbeEnv(gym.Env[int, Any]):
    """One of the probes as an environment.

    ## Description
    A chain of a few states. Actions are asked for and ignored.

    ## Action Space
    `Discrete(2)`, or `Box(-1, 1, (1,))` if `actions` says so.

    ## Observation Space
    `Discrete(n)`, the state.

    ## Starting State
    One of the probe's `starts`, each as often.

    ## Rewards
    The probe's, for leaving a state.

    ## Episode End
    Termination and truncation as the probe says.

    ## Information
    None.

    ## Arguments
    - `name`: a key of `PROBES`.
    - `actions`: "discrete" or "box".

    ## Version History
    - v0: first version.
    """

    metadata = {"render_modes": []}

    def __init__(
        self, name: str = "termination", actions: Literal["discrete", "box"] = "discrete"
    ) -> None:
        if name not in PROBES:
            raise ValueError(f"name: expected one of {sorted(PROBES)}, got {name!r}")
        self.probe = PROBES[name]
        self.observation_space = spaces.Discrete(len(self.probe.rewards))
        self.action_space: Any = (
            spaces.Discrete(2) if actions == "discrete" else spaces.Box(-1.0, 1.0, (1,))
        )
        self.render_mode = None
        self._state = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        starts = self.probe.starts
        self._state, self._steps = starts[int(self.np_random.integers(len(starts)))], 0
        return self._state, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Goes on to the next state, whatever the action."""
        probe, left = self.probe, self._state
        self._steps += 1
        self._state = probe.next_state[left]
        out_of_time = probe.max_steps is not None and self._steps >= probe.max_steps
        truncated = bool(probe.truncated[left] or out_of_time) and not probe.terminated[left]
        return self._state, probe.rewards[left], probe.terminated[left], truncated, {}
