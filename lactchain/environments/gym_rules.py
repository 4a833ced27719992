"""Gymnasium's rules of `reset` and `step`: an environment that breaks one is told which."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain.errors import EnvironmentFault

_NUMBERS = (float, Real)  # the usual type first: asking an abstract class is slow
_FLAGS = (bool, np.bool_)


def check_reset(result: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless this is what `reset` of the environment may return."""
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise _fault(env, "reset() returns (observation, info dict)", result)
    check_observation(result[0], env)


def check_step(result: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless this is what `step` may return; see `check_observation`."""
    if not isinstance(result, tuple) or len(result) != 5:
        rule = "step() returns (observation, reward, terminated, truncated, info)"
        raise _fault(env, rule, result)
    _, reward, terminated, truncated, info = result
    if not isinstance(reward, _NUMBERS) or not math.isfinite(reward):
        raise _fault(env, "a reward is a finite number", reward)
    if not isinstance(terminated, _FLAGS) or not isinstance(truncated, _FLAGS):
        raise _fault(env, "terminated and truncated are booleans", (terminated, truncated))
    if not isinstance(info, dict):
        raise _fault(env, "info is a dict", info)


def check_observation(observation: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless the observation is in its space."""
    if observation not in env.observation_space:
        raise _fault(env, f"an observation is in {env.observation_space}", observation)


def _fault(env: gym.Env, rule: str, got: object) -> EnvironmentFault:
    return EnvironmentFault(f"{env} breaks Gymnasium's rule: {rule}; got {str(got)[:200]}")
