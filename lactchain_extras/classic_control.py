"""Gymnasium's classic control problems as numpy batches: many copies behind one `step`.

The dynamics, starts, rewards and time limits are those of Gymnasium's single environments, and so
are the random numbers: copy i of a batch that is reset with seed s plays the very episodes of the
single environment reset with seed s + i (and none thereafter), but for the last bits. Gymnasium's
own batch of CartPole resets one step late, with a dummy row that must not be learnt from; these
reset in the same step and hand out the final observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lactchain_extras.grid_batch import Stepped, own_seeds

Moved = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Next states (D, B), rewards (B,), and whether the next states are terminal (B,)."""


class ClassicControlVectorEnv(VectorEnv):
    """Copies of one classic control problem; a subclass says how they move.

    Attributes:
        state: (D, num_envs), the physical state of each copy in float64.
        num_steps: (num_envs,), steps since each copy was reset.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
    single_env: type
    time_limit: int

    def __init__(self, num_envs: int = 1, max_episode_steps: int | None = None) -> None:
        self._single = single = self.single_env()
        self.num_envs = num_envs
        self.max_steps = self.time_limit if max_episode_steps is None else max_episode_steps
        if type(self.max_steps) is not int or self.max_steps < 1:
            raise TypeError(f"expected at least one step, got {self.max_steps!r}")
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.num_steps = np.zeros(num_envs, dtype=np.int64)
        self._streams = [np.random.default_rng() for _ in range(num_envs)]
        self.state = np.stack([self._start(stream) for stream in self._streams], axis=1)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode in every copy."""
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + copy for copy in range(self.num_envs)]
        for copy, own in own_seeds(seed, self.num_envs) if seed is not None else ():
            self._streams[copy] = np.random.default_rng(own)
        self._restart(range(self.num_envs))
        return self._observe(self.state), {}

    def step(self, actions: np.ndarray) -> Stepped:
        """Plays one action in every copy; resets the copies that end."""
        self.state, rewards, terminated = self._move(self.state, np.asarray(actions))
        self.num_steps += 1
        # As Gymnasium's TimeLimit: a copy that falls in its last step is both.
        truncated = self.num_steps >= self.max_steps
        observations = self._observe(self.state)
        ended = terminated | truncated
        infos: dict[str, Any] = {}
        if ended.any():
            infos = {"final_obs": observations, "_final_obs": ended}
            copies = np.flatnonzero(ended)
            self._restart(copies.tolist())
            observations = observations.copy()
            observations[copies] = self._observe(self.state[:, copies])
        return observations, rewards, terminated, truncated, infos

    def get_state(self) -> dict[str, Any]:
        """Everything that the next steps depend on, as arrays and what JSON holds."""
        return {
            "state": self.state.copy(),
            "num_steps": self.num_steps.copy(),
            "streams": [stream.bit_generator.state for stream in self._streams],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `get_state` was called."""
        self.state = state["state"].copy()
        self.num_steps = state["num_steps"].copy()
        for stream, stream_state in zip(self._streams, state["streams"], strict=True):
            stream.bit_generator.state = stream_state

    def _restart(self, copies: Sequence[int]) -> None:
        for copy in copies:
            self.state[:, copy] = self._start(self._streams[copy])
        self.num_steps[copies] = 0

    def _start(self, stream: np.random.Generator) -> np.ndarray:
        """The state (D,) that an episode starts in, as the single environment draws it."""
        self._single.np_random = stream
        self._single.reset()
        return np.array(self._single.state)

    def _observe(self, state: np.ndarray) -> np.ndarray:
        """Observations (B, …) of states (D, B)."""
        return state.T.astype(np.float32)

    def _move(self, state: np.ndarray, actions: np.ndarray) -> Moved:
        """What actions (B, …) in states (D, B) lead to."""
        raise NotImplementedError


class CartPoleVectorEnv(ClassicControlVectorEnv):
    """`CartPole-v1`: +1 a step until the pole or the cart has gone too far."""

    single_env, time_limit = CartPoleEnv, 500
    limits = np.array([[2.4], [12 * 2 * np.pi / 360]])

    def _move(self, state: np.ndarray, actions: np.ndarray) -> Moved:
        x, x_dot, theta, theta_dot = state
        force = 20.0 * actions - 10.0
        cos, sin = np.cos(theta), np.sin(theta)
        push = (force + 0.05 * theta_dot * theta_dot * sin) / 1.1
        theta_acc = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        x_acc = push - 0.05 * theta_acc * cos / 1.1
        speeds = np.array([x_dot, x_acc, theta_dot, theta_acc])
        state = state + 0.02 * speeds
        terminated = (np.abs(state[::2]) > self.limits).any(axis=0)
        return state, np.ones(len(actions)), terminated


class PendulumVectorEnv(ClassicControlVectorEnv):
    """`Pendulum-v1`: torque swings it up; angle, speed and torque cost; 200 steps."""

    single_env, time_limit = PendulumEnv, 200

    def _observe(self, state: np.ndarray) -> np.ndarray:
        angle, speed = state
        return np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)

    def _move(self, state: np.ndarray, actions: np.ndarray) -> Moved:
        angle, speed = state
        torque = np.clip(actions[:, 0], -2.0, 2.0)
        from_upright = (angle + np.pi) % (2 * np.pi) - np.pi
        costs = from_upright**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = np.clip(speed + (15.0 * np.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
        angle = angle + speed * 0.05
        return np.array([angle, speed]), -costs, np.zeros(len(costs), dtype=bool)


class MountainCarVectorEnv(ClassicControlVectorEnv):
    """`MountainCar-v0`: −1 a step until the car has swung itself up the hill; 200 steps."""

    single_env, time_limit = MountainCarEnv, 200

    def _move(self, state: np.ndarray, actions: np.ndarray) -> Moved:
        position, speed = state
        speed = speed + (actions - 1) * 0.001 - 0.0025 * np.cos(3 * position)
        speed = np.clip(speed, -0.07, 0.07)
        position = np.clip(position + speed, -1.2, 0.6)
        speed = np.where((position == -1.2) & (speed < 0), 0.0, speed)
        terminated = (position >= 0.5) & (speed >= 0)
        return np.array([position, speed]), np.full(len(position), -1.0), terminated


class AcrobotVectorEnv(ClassicControlVectorEnv):
    """`Acrobot-v1`: −1 a step until two links have swung their end above the line; 500 steps."""

    single_env, time_limit = AcrobotEnv, 500
    fastest = np.array([[4 * np.pi], [9 * np.pi]])

    def _observe(self, state: np.ndarray) -> np.ndarray:
        a, b, a_dot, b_dot = state
        columns = [np.cos(a), np.sin(a), np.cos(b), np.sin(b), a_dot, b_dot]
        return np.stack(columns, axis=1).astype(np.float32)

    def _move(self, state: np.ndarray, actions: np.ndarray) -> Moved:
        torque, dt = actions - 1.0, 0.2
        # Runge-Kutta of fourth order, one step.
        k1 = _acrobot_speeds(state, torque)
        k2 = _acrobot_speeds(state + dt / 2 * k1, torque)
        k3 = _acrobot_speeds(state + dt / 2 * k2, torque)
        k4 = _acrobot_speeds(state + dt * k3, torque)
        state = state + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        state[:2] = (state[:2] + np.pi) % (2 * np.pi) - np.pi
        state[2:] = np.clip(state[2:], -self.fastest, self.fastest)
        terminated = -np.cos(state[0]) - np.cos(state[1] + state[0]) > 1.0
        return state, np.where(terminated, 0.0, -1.0), terminated


def _acrobot_speeds(state: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """Time derivatives of angles and speeds (Sutton & Barto's equations; unit links, masses)."""
    a, b, a_dot, b_dot = state
    cos, sin = np.cos(b), np.sin(b)
    d1 = 0.25 + (1.25 + cos) + 2.0
    d2 = 0.25 + 0.5 * cos + 1.0
    phi2 = 4.9 * np.cos(a + b - np.pi / 2)
    phi1 = -0.5 * b_dot**2 * sin - b_dot * a_dot * sin + 14.7 * np.cos(a - np.pi / 2) + phi2
    b_acc = (torque + d2 / d1 * phi1 - 0.5 * a_dot**2 * sin - phi2) / (1.25 - d2**2 / d1)
    a_acc = -(d2 * b_acc + phi1) / d1
    return np.array([a_dot, b_dot, a_acc, b_acc])


VECTOR_ENVS: dict[str, type[ClassicControlVectorEnv]] = {
    "CartPole-v1": CartPoleVectorEnv,
    "Pendulum-v1": PendulumVectorEnv,
    "MountainCar-v0": MountainCarVectorEnv,
    "Acrobot-v1": AcrobotVectorEnv,
}
