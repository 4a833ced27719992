"""Checks for any agent, of whatever library: do its values come out as they must?

`examine` trains an agent on tiny environments whose values are known; a wrong value names the
fault. `check_*` judge single pieces: a replay buffer, generalised advantages, double-Q targets, a
conservative penalty. None of them looks inside; all take plain functions of numpy arrays.

    from lactchain.baselines.checks import examine

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
from typing import Any, Protocol

import numpy as np

from lactchain.baselines.probes import PROBES

ENV_ID = "lactchain/Probe-v0"
# (env_id, its arguments, gamma) → states (n,) to values (n,): V(s), or max_a Q(s, a).
Learn = Callable[[str, Mapping[str, Any], float], Callable[[np.ndarray], Any]]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        name: of the check.
        passed: whether the agent got it right.
        fault: what is wrong if it did not.
        expected: the right numbers.
        got: the agent's.
    """

    name: str
    passed: bool
    fault: str
    expected: list[float]
    got: list[float]

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
        values = learn(ENV_ID, {"name": name, **kwargs}, probe.gamma)
        got = np.asarray(values(np.arange(len(probe.values))), dtype=float)
        findings.append(_finding(name, probe.fault, probe.values, got, tolerance))
    return findings


class Buffer(Protocol):
    """A replay buffer as `check_replay` sees it."""

    def add(self, observation: float, reward: float, next_observation: float, end: bool) -> None:
        """Stores one transition."""
        ...

    def everything(self) -> Iterable[tuple[float, float, float, bool]]:
        """All transitions that are held, as they would be sampled."""
        ...


def check_replay(buffer: Buffer, capacity: int) -> Finding:
    """Are the newest `capacity` transitions held, each with its own successor, at every seam?

    Transitions are numbered; every third one ends an episode on an observation of its own.
    """
    numbers = range(1, 2 * capacity + capacity // 2 + 2)
    stored = [(float(n), 10.0 * n, -n if n % 3 == 0 else n + 1.0, n % 3 == 0) for n in numbers]
    for transition in stored:
        buffer.add(*transition)
    expected = sorted(stored[-capacity:])
    got = sorted((float(o), float(r), float(s), bool(e)) for o, r, s, e in buffer.everything())
    return Finding(
        "replay", got == expected, "rows have lost their own successor, or old ones are held",
        [row[2] for row in expected], [row[2] for row in got],
    )  # fmt: skip


def check_advantages(advantages: Callable[..., Any]) -> Finding:
    """Are generalised advantages cut where an episode ends, and bootstrapped where it is cut?

    Args:
        advantages: of (rewards, values, next_values, terminated, truncated, gamma, lambda_), arrays
            (T,), to advantages (T,). `next_values` are of what each step led to, before any reset.
    """
    rewards = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    values = np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
    next_values = np.array([1.0, 7.0, 2.0, 9.0, 3.0, 3.5])
    terminated = np.array([False, True, False, False, False, False])
    truncated = np.array([False, False, False, True, False, False])
    gamma, lambda_ = 0.5, 0.5
    expected, running = np.zeros(6), 0.0
    for t in reversed(range(6)):
        delta = rewards[t] + gamma * (not terminated[t]) * next_values[t] - values[t]
        running = delta + gamma * lambda_ * (not terminated[t] and not truncated[t]) * running
        expected[t] = running
    got = np.asarray(
        advantages(rewards, values, next_values, terminated, truncated, gamma, lambda_), float
    )
    fault = "the recursion is masked at the wrong step, or a cut is not bootstrapped"
    return _finding("advantages", fault, expected, got, 1e-5)


def check_double_q(targets: Callable[..., Any]) -> Finding:
    """Does the online network choose the next action, and the target network value it?

    Args:
        targets: of (rewards (B,), discounts (B,), q_online (B, A), q_target (B, A)) to (B,).
    """
    rewards, discounts = np.array([1.0, 1.0]), np.array([0.5, 0.0])
    q_online = np.array([[0.0, 1.0, 0.5], [9.0, 0.0, 0.0]])
    q_target = np.array([[8.0, 2.0, 4.0], [9.0, 9.0, 9.0]])
    got = np.asarray(targets(rewards, discounts, q_online, q_target), float)
    fault = "the networks' parts are exchanged, or no network's choice is valued by another"
    return _finding("double_q", fault, (1 + 0.5 * 2.0, 1.0), got, 1e-5)


def check_conservatism(penalty: Callable[..., Any]) -> Finding:
    """Does the penalty push unseen actions below the one in the data?

    Args:
        penalty: of (q (B, A), actions in the data (B,)) to the mean or per-row penalty.

    The slope in each action's value is measured: it must be negative for the action in the data
    and positive for all others.
    """
    q, action, step = np.array([[1.0, 0.5, 2.0, 1.0]]), np.array([1]), 1e-3

    def at(place: int, change: float) -> float:
        moved = q.copy()
        moved[0, place] += change
        return float(np.mean(np.asarray(penalty(moved, action), float)))

    slopes = np.array([(at(a, step) - at(a, -step)) / (2 * step) for a in range(4)])
    weights = np.exp(q[0]) / np.exp(q[0]).sum()
    expected = weights - np.eye(4)[1]
    passed = bool(slopes[1] < 0 and (np.delete(slopes, 1) > 0).all())
    return Finding(
        "conservatism", passed,
        "values of unseen actions are not pushed below that of the action in the data",
        expected.round(4).tolist(), slopes.round(4).tolist(),
    )  # fmt: skip


def _finding(name: str, fault: str, expected: Any, got: np.ndarray, tolerance: float) -> Finding:
    wanted = np.asarray(expected, dtype=float)
    allowed = tolerance * max(1.0, float(np.abs(wanted).max()))
    passed = got.shape == wanted.shape and bool((np.abs(got - wanted) <= allowed).all())
    return Finding(name, passed, fault, wanted.round(4).tolist(), got.round(4).tolist())
