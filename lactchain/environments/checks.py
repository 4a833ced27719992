"""Checks of what environments are given, and of what they return by Gymnasium's rules."""

import copy
import json
import math
from collections import Counter
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.errors import EnvironmentFault
from lactchain.types import Reward

_NUMBERS = (float, Real)  # the usual type first: asking an abstract class is slow
_FLAGS = (bool, np.bool_)
_CONSTANT = frozenset((int, float, str, bool, type(None)))
_COUNTED = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
MOST_REWARD = float(np.finfo(np.float32).max)
"""Critics compute in this type. Sums of larger rewards would not even have a place in float64."""


class AnyText(spaces.Text):
    """Any text at all, in any language: what a model may say. Samples are of its characters."""

    def contains(self, x: Any) -> bool:
        """Whether it is a text."""
        return isinstance(x, str)


def at_least_one(name: str, value: object) -> int:
    """A count, such as of steps; `ValueError` where it is no whole number, or less than 1."""
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return int(value)


def owned(value: Any) -> Any:
    """A copy of what a world hands over, or is handed: it may go on changing its own in place."""
    kind = type(value)  # by hand, since states are taken after every action
    if kind in _CONSTANT:
        return value
    if kind is dict:
        plain = _CONSTANT.issuperset(map(type, value.values()))
        return value.copy() if plain else {name: owned(part) for name, part in value.items()}
    if kind is list:
        plain = _CONSTANT.issuperset(map(type, value))
        return value.copy() if plain else [owned(part) for part in value]
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    return copy.deepcopy(value)


def plain(value: Any) -> Any:
    """`owned`, as a file has it: lists in the place of arrays, and Python's own numbers."""
    kind = type(value)
    if kind is dict:
        constant = _CONSTANT.issuperset(map(type, value.values()))
        return value.copy() if constant else {name: plain(part) for name, part in value.items()}
    if kind in (list, tuple):
        return kind(map(plain, value))
    if isinstance(value, np.ndarray | np.generic):
        # An array of objects would go on sharing them.
        return plain(value.tolist()) if value.dtype.hasobject else value.tolist()
    return owned(value)


def start_state(options: Mapping[str, Any] | None) -> Any:
    """The state that all copies are told to begin in, if any; other options are a `ValueError`."""
    unknown = (options or {}).keys() - {"state"}
    if unknown:
        raise ValueError(f"options: expected state, or none, got {sorted(unknown)}")
    return (options or {}).get("state")


def rewards_of(
    scheme: Reward, state: np.ndarray, action: np.ndarray, next_state: np.ndarray
) -> np.ndarray:
    """Rewards (B,) of actions (B,) between rows (B, D); `ValueError` unless B finite numbers."""
    rewards = np.asarray(scheme.reward(state, action, next_state), dtype=float)
    if rewards.shape != action.shape or not np.isfinite(rewards).all():
        raise ValueError(
            f"reward: expected {len(action)} finite numbers for as many transitions, got"
            f" {str(rewards)[:80]} of shape {rewards.shape}"
        )
    return rewards


def check_reset(result: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless this is what `reset` of the environment may return."""
    check_reset_form(result, env)
    check_observation(result[0], env)


def check_reset_form(result: Any, env: gym.Env) -> None:
    """The same, whatever the observation."""
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise _fault(env, "reset() returns (observation, info dict)", result)


def check_step(result: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless this is what `step` may return; see `check_observation`."""
    check_step_form(result, env)
    if not abs(result[1]) < math.inf:
        raise _fault(env, "a reward is a finite number", result[1])


def check_step_form(result: Any, env: gym.Env) -> None:
    """The same, with rewards that are NaN or infinite."""
    if not isinstance(result, tuple) or len(result) != 5:
        rule = "step() returns (observation, reward, terminated, truncated, info)"
        raise _fault(env, rule, result)
    _, reward, terminated, truncated, info = result
    if not isinstance(reward, _NUMBERS):
        raise _fault(env, "a reward is a finite number", reward)
    if MOST_REWARD < abs(reward) < math.inf:
        raise _fault(env, f"a reward is at most {MOST_REWARD:.1e}, as float32 is", reward)
    if not isinstance(terminated, _FLAGS) or not isinstance(truncated, _FLAGS):
        raise _fault(env, "terminated and truncated are booleans", (terminated, truncated))
    if not isinstance(info, dict):
        raise _fault(env, "info is a dict", info)


def check_success(value: Any, env: gym.Env) -> bool:
    """Whether an episode ended well; `EnvironmentFault` for what says neither, such as a text."""
    if not isinstance(value, (*_FLAGS, Integral)):
        raise _fault(env, "the view's success is true or false", value)
    return bool(value)


def check_state(value: Any, env: gym.Env) -> Any:
    """`plain` of a state; `EnvironmentFault` unless its parts have names. None: nobody can tell."""
    state = plain(value)
    if state is not None and type(state) is not dict:
        raise _fault(env, "the view's get_state gives a dict, the parts of a state", value)
    return state


def check_reached(reached: Any, again: Any, wanted: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless an episode begins where it is to, and a file can say where.

    Args:
        reached: what the view tells of it, and `again` when it is asked once more.
        wanted: the state that was asked for, if any.
    """
    check_stored(reached, env)
    if again != reached:
        rule = "the view's get_state tells the same until the next step"
        raise _fault(env, rule, f"{reached}, and then {again}")
    wanted, reached = plain(wanted or {}), reached or {}
    if elsewhere := [n for n in wanted if n in reached and reached[n] != wanted[n]]:
        raise EnvironmentFault(
            f"{env} cannot be put back where it was: its {elsewhere[0]} is"
            f" {reached[elsewhere[0]]}, and set_state was given {wanted}; let it set all of it"
        )


def check_stored(state: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless a file gives a state back as it is."""
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _fault(env, f"a state is what JSON can hold ({error})", state) from None
    _check_names(state, env)


def _check_names(state: Any, env: gym.Env) -> None:
    for name, part in state.items() if isinstance(state, dict) else ():
        if not isinstance(name, str):
            raise _fault(env, "the names in a state are texts", state)
        _check_names(part, env)


def check_states(value: Any, env: gym.Env) -> list[Any]:
    """`plain` of a list of states; `EnvironmentFault` for none, or what is no state."""
    if not isinstance(value, list | tuple) or not value:
        raise _fault(env, "the view's states and starts are lists of at least one state", value)
    states = [check_state(state, env) for state in value]
    named = Counter(json.dumps(state, sort_keys=True, default=str) for state in states)
    if len(named) < len(states):
        twice = named.most_common(1)[0][0]
        raise _fault(env, "the view's states and starts list each state once", twice)
    return states


def check_position(value: Any, env: gym.Env) -> list[Any]:
    """`plain` of where an agent is; `EnvironmentFault` unless it is a list of numbers."""
    place = plain(value)
    if not isinstance(place, list | tuple) or not all(map(_is_finite, place)):
        raise _fault(env, "the view's position is a list of numbers", value)
    return place


def check_ending(value: Any, env: gym.Env) -> str | None:
    """What is said in the end; `EnvironmentFault` unless that is a text, or None."""
    if not isinstance(value, str | None):
        raise _fault(env, "the view's ending is a text, or None", value)
    return value


def check_fields(value: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless a view describes a state by fields with names."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise _fault(env, "the view's describe gives a dict, the fields of its template", value)


def check_outcomes(value: Any, env: gym.Env) -> list[Any]:
    """`plain` of all that may come of an action: probabilities that sum to 1, rewards, states."""
    rule = "the view's outcomes are triples of a probability, a finite reward and a state"
    if not isinstance(value, list | tuple) or not value:
        raise _fault(env, rule, value)
    for outcome in value:
        if not isinstance(outcome, tuple) or len(outcome) != 3:
            raise _fault(env, rule, outcome)
        if not all(map(_is_finite, outcome[:2])):
            raise _fault(env, rule, outcome)
    shares = [outcome[0] for outcome in value]
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise _fault(env, "the probabilities of the view's outcomes sum to 1", shares)
    return plain(list(value))


def check_observation(observation: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless the observation is in its space."""
    if observation not in env.observation_space:
        raise _fault(env, f"an observation is in {env.observation_space}", observation)


def check_shape(observation: Any, env: gym.Env) -> None:
    """The same of an observation that networks read, which may lie beyond its bounds."""
    space = env.observation_space
    if isinstance(space, spaces.Box):
        fits = _is_numeric(observation, space.shape)
    else:
        fits = not isinstance(space, _COUNTED) or observation in space
    if not fits:
        raise _fault(env, f"an observation is of the shape and kind of {space}", observation)


def _is_finite(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and abs(value) < math.inf


def _is_numeric(value: Any, shape: tuple[int, ...]) -> bool:
    try:
        rows = np.asarray(value)
    except ValueError:  # of lists of several lengths
        return False
    return rows.shape == shape and rows.dtype.kind in "biuf"


def _fault(env: gym.Env, rule: str, got: object) -> EnvironmentFault:
    try:
        kind = "" if isinstance(got, tuple | str | dict) else f" ({type(got).__name__})"
        shown = " ".join(str(got).split())[:200] + kind
    except ValueError:  # Python writes no number of more than 4,300 digits
        whole = isinstance(got, int)
        shown = f"a number of {got.bit_length()} bits" if whole else "one of thousands of digits"
    return EnvironmentFault(f"{env} breaks Gymnasium's rule: {rule}; got {shown}")
