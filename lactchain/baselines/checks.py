"""Checks for any agent, of whatever library: do its values come out as they must?

`examine` trains an agent on tiny environments whose values are known (`PROBES`, registered as
`lactchain/Probe-v0`); a wrong value names the fault. `check_*` judge single pieces: a replay
buffer, generalised advantages, double-Q targets, a conservative penalty. None of them looks inside;
all take plain functions of numpy arrays.

    def learn(env_id, kwargs, gamma):        # train your agent for a few seconds
        env = gymnasium.make(env_id, **kwargs)
        ...
        return lambda states: [my_value(state) for state in states]

    for finding in examine(learn):
        print(finding)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

# (env_id, its arguments, gamma) → states (n,) to values (n,): V(s), or max_a Q(s, a).
Learn = Callable[[str, Mapping[str, Any], float], Callable[[np.ndarray], Any]]
Transition = tuple[float, float, float, bool]
"""Observation, reward, next observation, whether the episode ended."""


@dataclass(frozen=True)
class Probe:
    """A chain of states, in which actions change nothing.

    Attributes:
        fault: what a wrong value says about an agent.
        next_state: the state after each state.
        rewards: of leaving each state.
        values: of the states under a discount of 0.5.
        terminal: states that end the episode when they are left.
        cut: states where the time limit cuts when they are left.
        starts: the states that episodes begin in, each as often.
        max_steps: time limit besides; None: there is none.
    """

    fault: str
    next_state: tuple[int, ...]
    rewards: tuple[float, ...]
    values: tuple[float, ...]
    terminal: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    starts: tuple[int, ...] = (0,)
    max_steps: int | None = None


GAMMA = 0.5
PROBES = {
    "termination": Probe(
        "a terminal state is given a value", (0,), (1.0,), values=(1.0,), terminal=(0,)
    ),
    "truncation": Probe(
        "a time limit is taken for an ending", (0,), (1.0,), values=(2.0,), max_steps=4
    ),
    # What the episode ends on looks like state 1, and is terminal all the same.
    "autoreset": Probe(
        "the row on which a vector environment resets is learnt from",
        (1, 1), (0.0, 1.0), values=(0.5, 1.0), terminal=(1,),
    ),
    # Cut on entering state 3, which is worth 4: the next episode's start is worth something else.
    "successor": Probe(
        "the successor of a last step is another episode's start, or another row of the ring",
        (1, 2, 3, 3), (0.0, 0.0, 0.0, 4.0), values=(0.5, 1.0, 2.0, 4.0), terminal=(3,), cut=(2,),
        starts=(0, 3),
    ),
    "credit": Probe(
        "rewards or ends of episodes are credited a step too early or too late",
        (1, 2, 2), (0.0, 0.0, 1.0), values=(0.25, 0.5, 1.0), terminal=(2,),
    ),
}  # fmt: skip


class ProbeEnv(gym.Env[int, Any]):
    """One of the probes as an environment: a chain of a few states; actions are ignored.

    Observations are `Discrete(n)`, the state; rewards, terminations and truncations are the
    probe's, for leaving a state.

    Args:
        name: a key of `PROBES`.
        actions: discrete, `Discrete(2)`; or box, `Box(-1, 1, (1,))`.
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
        terminated = left in probe.terminal
        truncated = left in probe.cut or self._steps == probe.max_steps
        return self._state, probe.rewards[left], terminated, truncated and not terminated, {}


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        name: of the check.
        fault: what is wrong if the agent did not pass.
        expected: the right numbers.
        got: the agent's.
        passed: whether the agent got it right.
    """

    name: str
    fault: str
    expected: list[float]
    got: list[float]
    passed: bool

    def __str__(self) -> str:
        if self.passed:
            return f"{self.name}: right"
        return f"{self.name}: {self.fault}; expected {self.expected}, got {self.got}"


def examine(
    learn: Learn, names: Iterable[str] = tuple(PROBES), tolerance: float = 0.08, **kwargs: Any
) -> list[Finding]:
    """Trains an agent on each probe and compares its values with the known ones.

    Args:
        learn: trains the agent from scratch and returns its value function.
        names: keys of `PROBES`.
        tolerance: largest error of a right value, relative to the largest value of the probe.
        kwargs: further arguments of the environment, such as `actions="box"`.
    """
    findings = []
    for name in names:
        probe = PROBES[name]
        values = learn("lactchain/Probe-v0", {"name": name, **kwargs}, GAMMA)
        got = values(np.arange(len(probe.values)))
        findings.append(_finding(name, probe.fault, probe.values, got, tolerance))
    return findings


def check_replay(
    add: Callable[..., None], everything: Callable[[], Iterable[Transition]], capacity: int
) -> Finding:
    """Are the newest `capacity` transitions held, each with its successor, as places are reused?

    Transitions are numbered; every third one ends an episode on an observation of its own.

    Args:
        add: stores a transition, given as four arguments, in a buffer.
        everything: all transitions that the buffer holds, as they would be sampled.
        capacity: of the buffer.
    """
    numbers = range(1, 2 * capacity + capacity // 2 + 2)
    stored = [(float(n), 10.0 * n, -n if n % 3 == 0 else n + 1.0, n % 3 == 0) for n in numbers]
    for transition in stored:
        add(*transition)
    fault = "rows have lost their own successor, or old ones are held"
    # Buffers of other libraries hold arrays of one element.
    held = sorted(tuple(np.asarray(part).item() for part in row) for row in everything())
    return _finding("replay", fault, sorted(stored[-capacity:]), held, 0.0)


def check_advantages(advantages: Callable[..., Any]) -> Finding:
    """Are generalised advantages cut where an episode ends, and bootstrapped where it is cut?

    Args:
        advantages: of (rewards, values, next_values, terminated, truncated, gamma, lambda_), arrays
            (T,), to advantages (T,). `next_values` are of what each step led to, before any reset.
    """
    rewards = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    values = np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
    next_values = np.array([1.0, 7.0, 2.0, 9.0, 3.0, 3.5])
    terminated, truncated = np.arange(6) == 1, np.arange(6) == 3
    gamma, lambda_ = 0.5, 0.5
    expected, running = np.zeros(6), 0.0
    for t in reversed(range(6)):
        delta = rewards[t] + gamma * (not terminated[t]) * next_values[t] - values[t]
        running = delta + gamma * lambda_ * (not terminated[t] and not truncated[t]) * running
        expected[t] = running
    got = advantages(rewards, values, next_values, terminated, truncated, gamma, lambda_)
    fault = "the recursion is masked at the wrong step, or a cut is not bootstrapped"
    return _finding("advantages", fault, expected, got, 1e-5)


def check_double_q(targets: Callable[..., Any]) -> Finding:
    """Does the online network choose the next action, and the target network value it?

    Args:
        targets: of (rewards (B,), discounts (B,), q_online (B, A), q_target (B, A)) to (B,).
    """
    q_online = np.array([[0.0, 1.0, 0.5], [9.0, 0.0, 0.0]])
    q_target = np.array([[8.0, 2.0, 4.0], [9.0, 9.0, 9.0]])
    got = targets(np.array([1.0, 1.0]), np.array([0.5, 0.0]), q_online, q_target)
    fault = "the networks' parts are exchanged, or no network's choice is valued by another"
    return _finding("double_q", fault, (1 + 0.5 * 2.0, 1.0), got, 1e-5)


def check_conservatism(penalty: Callable[..., Any]) -> Finding:
    """Does the penalty push unseen actions below the one in the data?

    The slope in each action's value must be negative for the action in the data and positive for
    all others.

    Args:
        penalty: of (q (B, A), actions in the data (B,)) to the mean or per-row penalty.
    """
    q, action, step = np.array([[1.0, 0.5, 2.0, 1.0]]), np.array([1]), 1e-3
    is_data = np.arange(4) == action
    higher, lower = (
        [np.mean(np.asarray(penalty(q + by * row, action), float)) for row in np.eye(4)]
        for by in (step, -step)
    )
    slopes = np.subtract(higher, lower) / (2 * step)
    weights = np.exp(q[0]) / np.exp(q[0]).sum()
    fault = "values of unseen actions are not pushed below that of the action in the data"
    passed = bool(np.where(is_data, slopes < 0, slopes > 0).all())
    return _finding("conservatism", fault, weights - is_data, slopes, passed=passed)


def _finding(
    name: str, fault: str, expected: Any, got: Any, tolerance: float = 0, passed: bool | None = None
) -> Finding:
    expected, got = np.asarray(expected, dtype=float), np.asarray(got, dtype=float)
    if passed is None:
        allowed = tolerance * max(1.0, float(np.abs(expected).max()))
        passed = got.shape == expected.shape and bool((np.abs(got - expected) <= allowed).all())
    return Finding(name, fault, expected.round(4).tolist(), got.round(4).tolist(), passed)
