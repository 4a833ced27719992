"""What environments may do wrong, and where: calls that raise or never return, values of no use.

A call may raise, break Gymnasium's rules, end the process, or never return. Whatever comes of it is
an `EnvironmentFault` that names the seed and the last action. What is under way is known to whoever
watches.
"""

import json
import math
import os
import time
import traceback
from _signal import SIGINT, SIGTERM, getsignal, signal  # `signal` makes enums: 100 times as slow
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial, wraps
from numbers import Integral, Real
from operator import itemgetter
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.errors import EnvironmentFault, LactChainError
from lactchain.types import Reward

P, Result = ParamSpec("P"), TypeVar("Result")
Seed = int | str | None
Check = Callable[[Any, gym.Env], None]
MOST_SHOWN = 300
_under_way: dict[int, tuple[float, gym.Env, Seed, Any]] = {}
"""What each thread waits for."""

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


def plain(value: Any) -> Any:
    """A copy of what a world hands over: lists in the place of arrays, and Python's own numbers.

    The world may go on changing its own in place.
    """
    kind = type(value)  # by hand, since states are taken after every action
    if kind in _CONSTANT:
        return value
    if kind is dict:
        constant = _CONSTANT.issuperset(map(type, value.values()))
        return value.copy() if constant else {name: plain(part) for name, part in value.items()}
    if kind in (list, tuple):
        return kind(map(plain, value))
    if isinstance(value, np.ndarray | np.generic):
        # An array of objects would go on sharing them.
        return plain(value.tolist()) if value.dtype.hasobject else value.tolist()
    return deepcopy(value)


# --- Gymnasium's own rules ------------------------------------------------------------------------


def check_reset(result: Any, env: gym.Env, for_networks: bool = False) -> None:
    """Raises `EnvironmentFault` unless this is what `reset` of an environment may return.

    What is read `for_networks` may lie beyond the bounds of its space.
    """
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise broken_rule(env, "reset() returns (observation, info dict)", result)
    (check_shape if for_networks else check_observation)(result[0], env)


def check_step(result: Any, env: gym.Env, for_networks: bool = False) -> None:
    """The same of `step`, but for the observation, which texts ask for at the end of a chain.

    With `for_networks` of that as well; rewards that are not finite are left to who learns by them.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        rule = "step() returns (observation, reward, terminated, truncated, info)"
        raise broken_rule(env, rule, result)
    observation, reward, terminated, truncated, info = result
    if not isinstance(reward, _NUMBERS) or not (for_networks or abs(reward) < math.inf):
        raise broken_rule(env, "a reward is a finite number", reward)
    if MOST_REWARD < abs(reward) < math.inf:
        raise broken_rule(env, f"a reward is at most {MOST_REWARD:.1e}, as float32 is", reward)
    if not isinstance(terminated, _FLAGS) or not isinstance(truncated, _FLAGS):
        raise broken_rule(env, "terminated and truncated are booleans", (terminated, truncated))
    if not isinstance(info, dict):
        raise broken_rule(env, "info is a dict", info)
    if for_networks:
        check_shape(observation, env)


def check_observation(observation: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless the observation is in its space."""
    if observation not in env.observation_space:
        raise broken_rule(env, f"an observation is in {env.observation_space}", observation)


def check_shape(observation: Any, env: gym.Env) -> None:
    """The same of an observation that networks read, which may lie beyond its bounds."""
    space = env.observation_space
    if isinstance(space, spaces.Box):
        try:
            rows = np.asarray(observation)
            fits = rows.shape == space.shape and rows.dtype.kind in "biuf"
        except ValueError:  # of lists of several lengths
            fits = False
    else:
        fits = not isinstance(space, _COUNTED) or observation in space
    if not fits:
        raise broken_rule(env, f"an observation is of the shape and kind of {space}", observation)


# --- what a view tells ----------------------------------------------------------------------------


def _is_state(value: Any) -> bool:
    return value is None or type(value) is dict


def _is_finite(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and abs(value) < math.inf


def _are_states(value: Any) -> bool:
    if not isinstance(value, list) or not value or not all(map(_is_state, value)):
        return False
    return len({json.dumps(state, sort_keys=True, default=str) for state in value}) == len(value)


def _are_outcomes(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    if not all(isinstance(one, tuple | list) and len(one) == 3 for one in value):
        return False
    shares, rewards, _ = zip(*value, strict=True)
    is_finite = all(map(_is_finite, (*shares, *rewards)))
    return is_finite and min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-6


RULES_OF_VIEWS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "get_state": (_is_state, "gives a dict, the parts of a state"),
    "position": (
        lambda value: isinstance(value, list) and all(map(_is_finite, value)),
        "is a list of numbers",
    ),
    "success": (lambda value: isinstance(value, (*_FLAGS, Integral)), "is true or false"),
    "ending": (lambda value: isinstance(value, str | None), "is a text, or None"),
    "states": (_are_states, "lists at least one state, a dict, and each once"),
    "starts": (_are_states, "lists at least one state, a dict, and each once"),
    "outcomes": (
        _are_outcomes,
        "lists triples of a probability, a finite reward and a state; probabilities sum to 1",
    ),
}
"""What the functions of a `TextView` return, once it is `plain`."""


def check_reached(reached: Any, again: Any, wanted: Any, env: gym.Env) -> None:
    """Raises `EnvironmentFault` unless an episode begins where it is to, and a file can say where.

    Args:
        reached: what the view tells of it, and `again` when it is asked once more.
        wanted: the state that was asked for, if any.
    """
    try:
        json.dumps(reached, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise broken_rule(env, f"a state is what JSON can hold ({error})", reached) from None
    _check_names(reached, env)
    if again != reached:
        rule = "the view's get_state tells the same until the next step"
        raise broken_rule(env, rule, f"{reached}, and then {again}")
    wanted, reached = plain(wanted or {}), reached or {}
    if elsewhere := [n for n in wanted if n in reached and reached[n] != wanted[n]]:
        raise EnvironmentFault(
            f"{env} cannot be put back where it was: its {elsewhere[0]} is"
            f" {reached[elsewhere[0]]}, and set_state was given {wanted}; let it set all of it"
        )


def _check_names(state: Any, env: gym.Env) -> None:
    for name, part in state.items() if isinstance(state, dict) else ():
        if not isinstance(name, str):
            raise broken_rule(env, "the names in a state are texts", state)
        _check_names(part, env)


def broken_rule(env: gym.Env, rule: str, got: object) -> EnvironmentFault:
    """The error for an environment that is not as it is to be, by what it returned."""
    try:
        kind = "" if isinstance(got, tuple | str | dict) else f" ({type(got).__name__})"
        shown = " ".join(str(got).split())[:200] + kind
    except ValueError:  # Python writes no number of more than 4,300 digits
        shown = "what has thousands of digits"
    return EnvironmentFault(f"{env} breaks Gymnasium's rule: {rule}; got {shown}")


# --- calls ----------------------------------------------------------------------------------------


def _folder() -> str | None:
    with suppress(OSError):  # it may be gone
        return os.getcwd()
    return None


def _set_world_size(size: str | None) -> None:
    os.environ.pop("WORLD_SIZE", None) if size is None else os.environ.update(WORLD_SIZE=size)


OURS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    f"handler of {n}": (partial(getsignal, n), partial(signal, n)) for n in (SIGINT, SIGTERM)
} | {
    "number of processes": (partial(os.environ.get, "WORLD_SIZE"), _set_world_size),
    "working directory": (_folder, os.chdir),
}
"""What a world may not change of its process: how it is read, and how it is set."""
Before = list[tuple[Any, Callable[[], Any], Callable[[Any], Any]]]
"""Values of these, each with how it is read, and set."""


def ours() -> Before:
    """`OURS` as they are."""
    return [(read(), read, write) for read, write in OURS.values()]


def put_back(before: Before) -> None:
    """Sets them as `ours` has found them."""
    for value, read, write in before:
        if read() != value:
            # Only the main thread may set handlers, and a folder may be gone.
            with suppress(OSError, TypeError, ValueError):
                write(value)


def undone(call: Callable[P, Result]) -> Callable[P, Result]:
    """What a world changes of its process in a call that makes, resets or plays it is put back.

    A call in another thread may have changed it just then. So who plays in several threads reads
    `ours` once, and calls `put_back` behind each call.
    """

    @wraps(call)
    def and_back(*args: P.args, **kwargs: P.kwargs) -> Result:
        before = ours()
        try:
            return call(*args, **kwargs)
        finally:
            put_back(before)

    return and_back


def step(env: gym.Env, action: Any, seed: Seed, check: Check = check_step) -> Any:
    """What `env.step(action)` returns, once checked; until then `overdue` tells of it.

    `EnvironmentFault` if it raises, ends the process, or does not pass the check. The `seed` is
    that of the episode, in words or a number, where it is known.
    """
    return checked(called(env.step, env, seed, action, action), env, seed, action, check)


@undone
def reset(env: gym.Env, seed: int | None, check: Check = check_reset, **arguments: Any) -> Any:
    """The same of `env.reset`, with its other arguments."""
    result = called(env.reset, env, seed, None, seed=seed, **arguments)
    return checked(result, env, seed, None, check)


def checked(result: Any, env: gym.Env, seed: Seed, action: Any, check: Check) -> Any:
    """What an environment has returned; a fault that the check finds tells when that was."""
    try:
        check(result, env)
    except EnvironmentFault as fault:
        raise EnvironmentFault(f"{fault} ({_step(seed, action)})") from None
    return result


def overdue(seconds: float) -> str | None:
    """The call that has taken longer than this, in words; None where there is none."""
    calls = sorted(_under_way.copy().values(), key=itemgetter(0))
    if not calls or time.monotonic() - calls[0][0] < seconds:
        return None
    _, env, seed, action = calls[0]
    return f"{env}: a step has not returned within {seconds:.0f} s ({_step(seed, action)})"


def called(
    call: Callable[..., Any], env: gym.Env, seed: Seed, action: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """What a call of an environment returns; of LactChain's errors, they themselves are raised."""
    thread = get_ident()
    around = _under_way.get(thread)
    _under_way[thread] = time.monotonic(), env, seed, action
    try:
        return call(*args, **kwargs)
    except (LactChainError, KeyboardInterrupt):
        raise
    except SystemExit as end:
        raise EnvironmentFault(
            f"{env} called sys.exit({end.code!r}) in the middle of the work; let it raise an error,"
            f" or end the episode ({_step(seed, action)})"
        ) from end
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_SHOWN]
        where = f"at {place.filename}:{place.lineno} ({_step(seed, action)})"
        raise EnvironmentFault(f"{env} raised {problem}, {where}") from error
    finally:
        if around is None:
            del _under_way[thread]
        else:  # what is around it goes on, and has its time anew
            _under_way[thread] = time.monotonic(), *around[1:]


def _step(seed: Seed, action: Any) -> str:
    shown = " ".join(repr(action).split())[:MOST_SHOWN]
    return f"seed {seed}, last action {shown}"
