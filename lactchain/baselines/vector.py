"""Vector environments with the settings that text, bootstrapping and exact resume need."""

from __future__ import annotations

import random
from typing import Any, Literal, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lactchain import plugins
from lactchain.baselines.kept import Kept
from lactchain.environments import patience
from lactchain.environments.checks import check_reset_form, check_shape, check_step_form, owned
from lactchain.environments.registry import find_env
from lactchain.errors import EnvironmentFault


def make_vector_env(
    id: str,
    num_envs: int,
    /,
    vectorization_mode: Literal["vector_entry_point", "sync", "async"] | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Copies of a registered environment behind one `step`.

    Copies that end are reset in the same step, so `infos["final_obs"]` holds what they ended on,
    and no row is a dummy. The asynchronous mode does not use shared memory, through which text
    arrives empty.

    Args:
        id: a Gymnasium id, whose arguments are in `kwargs`.
        num_envs: number of copies.
        vectorization_mode: one numpy batch, a loop in this process, or a process for each copy,
            which pays for slow environments only; None: a batch that resets in the same step if
            there is one, else the loop. The name is Gymnasium's, so that no environment takes it.

    Raises:
        ValueError: there is no such mode.
        gymnasium.error.Error: there is no such environment, or it has no such mode.
    """
    mode, settings = vectorization_mode or "sync", {}
    if vectorization_mode is None and (batch := _batch(id, num_envs, kwargs)) is not None:
        return batch
    if mode != "vector_entry_point":
        settings["autoreset_mode"] = AutoresetMode.SAME_STEP
        kwargs["wrappers"] = [*kwargs.get("wrappers", ()), OwnObservations]
    if mode == "async":
        settings["shared_memory"] = False
    return gym.make_vec(id, num_envs, mode, settings, **kwargs)


class ResumableLoop(SyncVectorEnv):
    """Copies in a loop; to be put back, each plays its episode up to where it was again.

    `get_state()` gives arrays and what JSON can hold, as batches do by themselves; after
    `set_state(state)` it goes on alike.
    """

    def __init__(self, id: str, num_envs: int, **kwargs: Any) -> None:
        copies = [lambda: EpisodeRecord(gym.make(id, **kwargs))] * num_envs
        super().__init__(copies, autoreset_mode=AutoresetMode.SAME_STEP)

    def get_state(self) -> dict[str, Any]:
        """What every copy has recorded."""
        return {"copies": [copy.get_state() for copy in self.envs]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `get_state` was called."""
        self.reset(seed=0)
        for copy, copy_state in zip(self.envs, state["copies"], strict=True):
            copy.set_state(copy_state)


class OwnObservations(gym.Wrapper):
    """Hands out copies: a world may write each observation over the last one.

    A copy that is reset in the step that ends its episode would hand out the start as the end.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode."""
        return _own(self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        """Plays an action, which is the world's to change."""
        return _own(self.env.step(owned(action)))


class EpisodeRecord(gym.Wrapper):
    """Remembers how the episode began and what was played, so that it can be played again.

    An episode is a function of `np_random` at the reset and of the actions, as Gymnasium asks; and
    of what the world keeps over episodes, as far as `Kept` can read it.
    What breaks its rules is an `EnvironmentFault`, as it is in text worlds; rewards that are not
    finite are left to whoever learns from them.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._kept = Kept(env)
        self._start: dict[str, Any] = {"seed": 0}
        self._actions: list[Any] = []
        self._seen: dict[str, Any] = {}
        self._held = self._kept.now()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode, and a new record."""
        dice = self.env.unwrapped.np_random.bit_generator.state
        self._start = {"random": dice} if seed is None else {"seed": seed}
        self._held, self._actions = self._kept.now(), []
        result = _own(patience.reset(self.env, seed, _check_reset, options=options))
        self._seen = {"observation": result[0], "rewards": 0.0}
        return result

    def step(self, action: Any) -> Any:
        """Plays an action."""
        self._actions.append(np.array(action))
        result = _own(patience.step(self.env, action, self._start.get("seed"), _check_step))
        self._seen = {
            "observation": result[0],
            "rewards": self._seen["rewards"] + float(result[1]),
        }
        return result

    def get_state(self) -> dict[str, Any]:
        """How the episode began, the actions since, and what came of them."""
        start = self._start | {"kept": self._kept.changed(self._held)}
        return {"start": start, "actions": np.array(self._actions), "seen": self._seen}

    def set_state(self, state: dict[str, Any]) -> None:
        """Plays the episode up to where it was; `EnvironmentFault` if it leads elsewhere."""
        start, dice = state["start"], _dice_of_the_process()
        self._kept.put_back(start.get("kept", {}))
        if "random" in start:
            self.env.unwrapped.np_random.bit_generator.state = start["random"]
        self.reset(seed=start.get("seed"))
        for action in state["actions"]:
            self.step(action)
        for name, was in state.get("seen", {}).items():
            if not np.array_equal(was, self._seen[name]):
                self._refuse(f"its {name} is {self._seen[name]}, and was {was}")
        if dice != _dice_of_the_process():
            self._refuse("it draws from the generators of the process")

    def _refuse(self, why: str) -> NoReturn:
        raise EnvironmentFault(
            f"{self.env} cannot be put back where it was after {len(self._actions)} actions:"
            f" {' '.join(why.split())[:200]}; let it draw from its np_random alone, and keep over"
            " episodes only numbers, texts, and arrays of them"
        )


def _dice_of_the_process() -> tuple[int, ...]:
    """Tells whether anything draws from the global generators."""
    _, words, place, *_ = np.random.get_state()
    return hash(random.getstate()), hash(words.tobytes()), place


def _own(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a reset or a step returned, with a copy of the observation."""
    observation, *others = result
    return owned(observation), *others


def _check_reset(result: Any, env: gym.Env) -> None:
    check_reset_form(result, env)
    check_shape(result[0], env)


def _check_step(result: Any, env: gym.Env) -> None:
    check_step_form(result, env)
    check_shape(result[0], env)


def _batch(id: str, num_envs: int, kwargs: dict[str, Any]) -> VectorEnv | None:
    """The environment as one batch that resets in the same step, None where there is none."""
    known = (plugins.add_on("vector_envs") or {}).get(id)
    if known is not None and kwargs.keys() <= {"max_episode_steps"}:
        return known(num_envs, **kwargs)
    if find_env(id).vector_entry_point is None or known is not None:
        return None
    envs = gym.make_vec(id, num_envs, "vector_entry_point", **kwargs)
    if envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
        return envs
    envs.close()
    return None
