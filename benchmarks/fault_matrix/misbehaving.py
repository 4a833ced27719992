"""Environments that misbehave when they are told to, by variables of the process.

`faults/World-v0` is the environment `inner`. In the step that MISBEHAVE_AT numbers, counted over
all copies of the process, it does what MISBEHAVE names; without that it behaves.
"""

import os
import random
import sys
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np

IN_RESET = {"raises in reset", "reset without info", "reset gives nothing", "exits in reset"}
_calls = {"step": 0, "reset": 0}


class Misbehaving(gym.Wrapper):
    """An environment that goes wrong once, or from then on."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode."""
        result = self.env.reset(seed=seed, options=options)
        return self._changed(result) if _is_due("reset") else result

    def step(self, action: Any) -> Any:
        """Plays an action."""
        result = self.env.step(action)
        return self._changed(result) if _is_due("step") else result

    def _changed(self, result: tuple) -> Any:
        return MISBEHAVIOUR[os.environ["MISBEHAVE"]](self, result)


def _is_due(call: str) -> bool:
    fault = os.environ.get("MISBEHAVE")
    _calls[call] += 1
    if fault is None or (fault in IN_RESET) != (call == "reset"):
        return False
    first = 2 if call == "reset" else int(os.environ["MISBEHAVE_AT"])
    return _calls[call] == first or (fault in LASTING and _calls[call] > first)


def _replaced(place: int, value: Any) -> Any:
    return lambda env, result: (*result[:place], value, *result[place + 1 :])


def _raises(env: Misbehaving, result: tuple) -> Any:
    raise ValueError("no such\ncell [bold]$x$ \ud800")


def _exits(env: Misbehaving, result: tuple) -> Any:
    sys.exit(0)


def _ends_the_process(env: Misbehaving, result: tuple) -> Any:
    os._exit(0)


def _hangs(env: Misbehaving, result: tuple) -> Any:
    while True:
        time.sleep(0.05)


def _recurses(env: Misbehaving, result: tuple) -> Any:
    return _recurses(env, result)


def _takes_memory(env: Misbehaving, result: tuple) -> Any:
    return bytearray(1 << 62)


def _other_actions(env: Misbehaving, result: tuple) -> Any:
    env.action_space = gym.spaces.Discrete(1)
    env.unwrapped.action_space = gym.spaces.Discrete(1)
    return result


def _prints(env: Misbehaving, result: tuple) -> Any:
    print("a \x1b[31mred [bold] line \x00 {}" * 100, flush=True)
    os.write(1, b"\xff\xfe raw bytes\n")
    return result


def _leaves_threads(env: Misbehaving, result: tuple) -> Any:
    threading.Thread(target=time.sleep, args=(10**6,)).start()
    return result


def _seeds_all(env: Misbehaving, result: tuple) -> Any:
    random.seed(0)
    np.random.seed(0)
    return result


def _outside(env: Misbehaving, result: tuple) -> Any:
    space = env.observation_space
    wrong = space.n + 3 if isinstance(space, gym.spaces.Discrete) else np.zeros(97, np.float32)
    return (wrong, *result[1:])


def _not_a_number(env: Misbehaving, result: tuple) -> Any:
    if not isinstance(env.observation_space, gym.spaces.Box):
        return (float("nan"), *result[1:])
    return (np.full_like(result[0], np.nan), *result[1:])


MISBEHAVIOUR = {
    "raises": _raises,
    "raises in reset": _raises,
    "exits": _exits,
    "exits in reset": _exits,
    "ends the process": _ends_the_process,
    "hangs": _hangs,
    "recurses": _recurses,
    "takes memory": _takes_memory,
    "NaN reward": _replaced(1, float("nan")),
    "infinite reward": _replaced(1, np.float32("-inf")),
    "huge reward": _replaced(1, 1e308),
    "reward in words": _replaced(1, "1.0"),
    "flags in words": _replaced(2, "no"),
    "info is a list": _replaced(4, []),
    "no truncated": lambda env, result: (*result[:3], result[4]),
    "step gives nothing": lambda env, result: None,
    "reset gives nothing": lambda env, result: None,
    "reset without info": lambda env, result: result[0],
    "observation outside": _outside,
    "observation is NaN": _not_a_number,
    "no observation": _replaced(0, None),
    "other actions": _other_actions,
    "prints": _prints,
    "leaves threads": _leaves_threads,
    "seeds everything": _seeds_all,
}
LASTING = {"prints", "seeds everything"}


def make(inner: str, **kwargs: Any) -> gym.Env:
    """The environment of an id, which may misbehave."""
    return Misbehaving(gym.make(inner, disable_env_checker=True, **kwargs))


gym.register("faults/World-v0", entry_point=make, disable_env_checker=True)
