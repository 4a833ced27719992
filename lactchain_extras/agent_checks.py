"""Checks for any agent, of whatever library: do its values come out as they must?

`examine` trains an agent on tiny environments whose values are known (`PROBES`, registered as
`lactchain/Probe-v0`); a wrong value names the fault. `check_*` judge single pieces, and raise an
AssertionError with the fault and the numbers. None of them looks inside; all take plain functions
of numpy arrays.

    def learn(env_id, kwargs, gamma):        # train your agent for a few seconds
        env = gymnasium.make(env_id, **kwargs)
        ...
        return lambda states: [my_value(state) for state in states]

    assert not examine(learn)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal

gym.register("lactchain/Probe-v0", entry_point=f"{__name__}:ProbeEnv")

# (env_id, its arguments, gamma) → states (n,) to values (n,): V(s), or max_a Q(s, a).
Learn = Callable[[str, Mapping[str, Any], float], Callable[[np.ndarray], Any]]


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
    """

    fault: str
    next_state: tuple[int, ...]
    rewards: tuple[float, ...]
    values: tuple[float, ...]
    terminal: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    starts: tuple[int, ...] = (0,)


GAMMA = 0.5
PROBES = {
    "termination": Probe(
        "a terminal state is given a value", (0,), (1.0,), values=(1.0,), terminal=(0,)
    ),
    "truncation": Probe(
        "a time limit is taken for an ending", (1, 0), (1.0, 1.0), values=(2.0, 2.0), cut=(1,)
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
    """One of `PROBES` by its name; observations are the state, actions are ignored.

    Actions are of `Discrete(2)`, or with `actions="box"` of `Box(-1, 1, (1,))`.
    """

    metadata = {"render_modes": []}

    def __init__(
        self, name: str = "termination", actions: Literal["discrete", "box"] = "discrete"
    ) -> None:
        if name not in PROBES:
            raise ValueError(f"name: expected one of {sorted(PROBES)}, got {name!r}")
        self.probe = PROBES[name]
        self.observation_space = spaces.Discrete(len(self.probe.rewards))
        is_discrete = actions == "discrete"
        self.action_space: Any = spaces.Discrete(2) if is_discrete else spaces.Box(-1, 1, (1,))
        self._state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        self._state = int(self.np_random.choice(self.probe.starts))
        return self._state, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Goes on to the next state, whatever the action."""
        probe, left = self.probe, self._state
        self._state = probe.next_state[left]
        return self._state, probe.rewards[left], left in probe.terminal, left in probe.cut, {}


def examine(
    learn: Learn, names: Iterable[str] = tuple(PROBES), tolerance: float = 0.08, **kwargs: Any
) -> dict[str, str]:
    """Trains an agent on each probe; what is wrong with its values, by probe; nothing if all pass.

    Args:
        learn: trains the agent from scratch and returns its value function.
        names: keys of `PROBES`.
        tolerance: largest error of a right value, relative to the largest value of the probe.
        kwargs: further arguments of the environment, such as `actions="box"`.
    """
    faults = {}
    for name in names:
        probe = PROBES[name]
        values = learn("lactchain/Probe-v0", {"name": name, **kwargs}, GAMMA)
        got = np.asarray(values(np.arange(len(probe.values))), float)
        allowed = tolerance * max(1.0, *probe.values)
        if got.shape != (len(probe.values),) or not (abs(got - probe.values) <= allowed).all():
            expected = f"expected {list(probe.values)}, got {got.round(4).tolist()}"
            faults[name] = f"{probe.fault}; {expected}"
    return faults


def check_replay(
    add: Callable[..., None], everything: Callable[[], Iterable[Any]], capacity: int
) -> None:
    """Are the newest `capacity` transitions held, each with its successor, as places are reused?

    Args:
        add: stores an observation, a reward, the next observation and whether it is terminal.
        everything: all such transitions that the buffer holds, as they would be sampled.
        capacity: of the buffer.
    """
    numbers = range(1, 2 * capacity + capacity // 2 + 2)
    stored = [(float(n), 10.0 * n, -n if n % 3 == 0 else n + 1.0, n % 3 == 0) for n in numbers]
    for transition in stored:
        add(*transition)
    # Buffers of other libraries hold arrays of one element.
    held = sorted(tuple(np.asarray(part).item() for part in row) for row in everything())
    fault = "rows have lost their own successor, or old ones are held"
    assert_array_equal(held, sorted(stored[-capacity:]), fault)


def check_advantages(advantages: Callable[..., Any]) -> None:
    """Are generalised advantages cut where an episode ends, and bootstrapped where it is cut?

    They are of (rewards, values, next_values, terminated, truncated, gamma, lambda_), arrays (T,);
    `next_values` of what each step led to, before any reset.
    """
    rewards, values = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 1.0, 1.5, 2.0])
    next_values, gamma, lambda_ = np.array([7.0, 1.5, 9.0, 3.0]), 0.5, 0.5
    terminated, truncated = np.arange(4) == 0, np.arange(4) == 2
    got = advantages(rewards, values, next_values, terminated, truncated, gamma, lambda_)
    fault = "the recursion is masked at the wrong step, or a cut is not bootstrapped"
    # δ = 1 − .5; 2 + .5·1.5 − 1; 3 + .5·9 − 1.5, cut; 4 + .5·3 − 2. Only the second looks ahead.
    assert_allclose(got, [0.5, 1.75 + 0.25 * 6.0, 6.0, 3.5], rtol=1e-5, err_msg=fault)


def check_double_q(targets: Callable[..., Any]) -> None:
    """Does the online network choose the next action, and the target network value it?

    Targets (B,) are of (rewards (B,), discounts (B,), q_online (B, A), q_target (B, A)).
    """
    q_online = np.array([[0.0, 1.0, 0.5], [9.0, 0.0, 0.0]])
    q_target = np.array([[8.0, 2.0, 4.0], [9.0, 9.0, 9.0]])
    got = targets(np.array([1.0, 1.0]), np.array([0.5, 0.0]), q_online, q_target)
    fault = "the networks' parts are exchanged, or no network's choice is valued by another"
    assert_allclose(got, [1 + 0.5 * 2.0, 1.0], rtol=1e-5, err_msg=fault)


def check_conservatism(penalty: Callable[..., Any]) -> None:
    """Does the penalty push values of unseen actions down, and of the one in the data up?

    It is of (q (B, A), actions in the data (B,)), a mean or one for each row.
    """
    q, action, step = np.array([[1.0, 0.5, 2.0, 1.0]]), np.array([1]), 1e-3
    slopes = [
        np.mean(np.asarray(penalty(q + row, action) - penalty(q - row, action), float))
        for row in step * np.eye(4)
    ]
    fault = "values of unseen actions are not pushed below that of the action in the data"
    assert_array_equal(np.sign(slopes), [1, -1, 1, 1], fault)
