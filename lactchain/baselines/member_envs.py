"""The copies of an environment that the members of a population play.

P members with N copies each are P·N copies of one vector environment. What every agent has to get
right is done here once: `terminated` and `truncated` stay apart, the true successor of an episode's
last step is handed out instead of the start of the next one, every step of every copy is counted,
and episodes are summed from their first step to their last. An interrupted run can put the copies
back where they were.
"""

import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RescaleAction

from lactchain import plugins
from lactchain.baselines.settings import WorldConfig
from lactchain.baselines.state_files import Stored
from lactchain.baselines.transitions import Minibatch
from lactchain.environments import faults
from lactchain.environments.registry import find_env, not_taken
from lactchain.errors import ConfigError, EnvironmentFault, LactChainError, NonFiniteError
from lactchain.functional.random_streams import env_seeds

MOST_KEPT = 30_000
"""Entries of an array or a list; longer ones are data, such as a table of prices."""
_CHECK_RESET = partial(faults.check_reset, for_networks=True)
_CHECK_STEP = partial(faults.check_step, for_networks=True)
_SIMPLE = frozenset((bool, int, float, str, type(None)))


@dataclass(frozen=True)
class Transition(Minibatch):
    """One step of all copies, (P, N, …); successors are those before any reset.

    The successor of an episode that was cut (`truncated`) keeps its value.
    """

    truncated: np.ndarray


class FinishedEpisode(NamedTuple):
    """One finished episode: who played it, its undiscounted sum of rewards, and its steps."""

    member: int
    episode_return: float
    length: int


class MemberEnvs(Stored):
    """P·N copies of an environment, seen as (P, N).

    Args:
        id: a Gymnasium id, whose arguments are in `kwargs`.
        num_members: P.
        num_envs: N, copies of each member.
        seed: from which that of each copy's first reset is derived; or those seeds themselves.

    Attributes:
        observations: (P, N, …), where the next step begins.
        num_env_steps: steps of all copies of all members so far.
        episodes: those that ended since they were last taken by `pop_episodes`.
    """

    stored = "observations", "num_env_steps", "_returns", "_lengths", "envs"

    def __init__(
        self, id: str, num_members: int, num_envs: int, seed: int | Sequence[int] = 0, **kwargs: Any
    ) -> None:
        self.shape = (num_members, num_envs)
        self.envs = make_numeric_env(id, num_members * num_envs, **kwargs)
        self.observation_space = self.envs.single_observation_space
        self.action_space = self.envs.single_action_space
        if isinstance(seed, int):
            seed = env_seeds(seed, "copy", num_members * num_envs)
        self._seeds = seed
        start, _ = self.envs.reset(seed=self._seeds)
        self.check_finite("observation", start)
        self.observations = self._members(np.array(start))
        self.num_env_steps = 0
        self.episodes: list[FinishedEpisode] = []
        self._returns = np.zeros(self.shape)
        self._lengths = np.zeros(self.shape, dtype=np.int64)

    @faults.undone
    def step(self, actions: np.ndarray) -> Transition:
        """Plays one action (P, N, …) in every copy; `NonFiniteError` as by `check_finite`."""
        flat = actions.reshape(-1, *actions.shape[2:])
        *step, infos = self.envs.step(flat.copy())
        # Copies: a batch may write each step over the last one.
        after, rewards, terminated, truncated = map(np.array, step)
        self.check_finite("reward", rewards, flat)
        successors, ended = after, terminated | truncated
        if ended.any():
            successors = after.copy()
            successors[ended] = np.stack(infos["final_obs"][ended])
        self.check_finite("observation", successors, flat)
        step = Transition(
            observations=self.observations,
            actions=actions,
            rewards=rewards.reshape(self.shape),
            terminated=terminated.reshape(self.shape),
            truncated=truncated.reshape(self.shape),
            next_observations=self._members(successors),
        )
        self.observations = self._members(after)
        self.num_env_steps += rewards.size
        self._returns += step.rewards
        self._lengths += 1
        if successors is not after:
            self.check_finite("observation", after)
            self._note_episodes(ended.reshape(self.shape))
        return step

    def pop_episodes(self) -> list[FinishedEpisode]:
        """The episodes that ended since this was last called."""
        episodes, self.episodes = self.episodes, []
        return episodes

    def close(self) -> None:
        """Closes the environment."""
        self.envs.close()

    def check_finite(self, name: str, rows: np.ndarray, actions: np.ndarray | None = None) -> None:
        """Refuses rewards or observations (P·N, …) that are not finite, which actions led to."""
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            copy = int(np.argwhere(~np.isfinite(rows))[0][0])
            action = None if actions is None else actions[copy]
            raise NonFiniteError(
                f"environment copy {copy}: {name} {rows[copy]}"
                f" (first seed {self._seeds[copy]}, last action {action})"
            )

    def _members(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(*self.shape, *rows.shape[1:])

    def _note_episodes(self, ended: np.ndarray) -> None:
        for member, place in zip(*np.nonzero(ended), strict=True):
            total, length = self._returns[member, place], self._lengths[member, place]
            self.episodes.append(FinishedEpisode(int(member), float(total), int(length)))
        self._returns[ended] = 0.0
        self._lengths[ended] = 0


@faults.undone
def make_vector_env(id: str, num_envs: int, /, **kwargs: Any) -> VectorEnv:
    """Copies of a registered environment: as one numpy batch if there is one, else in a loop.

    Copies that end are reset in the same step, so `infos["final_obs"]` holds what they ended on,
    and no row is a dummy. `unwrapped.get_state()` gives arrays and what JSON can hold; after
    `unwrapped.set_state(state)` the copies go on alike.

    Args:
        id: a Gymnasium id, whose arguments are in `kwargs`.
        num_envs: number of copies.

    Raises:
        gymnasium.error.Error: there is no such environment.
    """
    known = (plugins.add_on("vector_envs") or {}).get(id)
    if known is not None and kwargs.keys() <= {"max_episode_steps"}:
        return known(num_envs, **kwargs)
    if find_env(id).vector_entry_point is not None and known is None:
        envs = gym.make_vec(id, num_envs, "vector_entry_point", **kwargs)
        same_step = envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        if same_step and hasattr(envs.unwrapped, "get_state"):
            return envs
        envs.close()
    return ResumableLoop(id, num_envs, **kwargs)


def make_numeric_env(id: str, num_envs: int, /, **kwargs: Any) -> VectorEnv:
    """Copies of an environment for agents: resumable, continuous actions within [-1, 1].

    Raises:
        ConfigError: there is no such environment, it is one of texts, it does not take these
            arguments, or the actions have no bounds.
    """
    if find_env(id).id not in gym.registry:
        raise ConfigError(f"environment.id: {id} is played in words; expected a Gymnasium id")
    try:
        envs = make_vector_env(id, num_envs, **kwargs)
    except (LactChainError, MemoryError):
        raise
    except Exception as error:
        raise not_taken(id, kwargs, error) from error
    space = envs.single_action_space
    if not isinstance(space, spaces.Box):
        return envs
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        envs.close()
        raise ConfigError(f"{id}: expected actions with finite bounds, got {space}")
    ones = np.ones(space.shape, dtype=space.dtype)
    return RescaleAction(envs, -ones, ones)


def spaces_of(world: WorldConfig) -> tuple[spaces.Space, spaces.Space]:
    """Of observations and of actions, of a single environment."""
    envs = make_numeric_env(world.id, 1, **world.kwargs)
    envs.close()
    return envs.single_observation_space, envs.single_action_space


class ResumableLoop(SyncVectorEnv):
    """Copies in a loop; to be put back, each plays its episode up to where it was again."""

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


class EpisodeRecord(gym.Wrapper):
    """Remembers how the episode began and what was played, so that it can be played again.

    An episode is a function of `np_random` at the reset and of the actions, as Gymnasium asks; and
    of what the world keeps over episodes, as far as `_kept` can read it. What is handed out are
    copies, since a world may write each observation over the last one.
    What breaks its rules is an `EnvironmentFault`, as it is in text worlds; rewards that are not
    finite are left to whoever learns from them.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._layers = [vars(env)]
        while isinstance(env, gym.Wrapper):
            env = env.env
            self._layers.append(vars(env))
        self._made = _kept(self._layers)
        self._start: dict[str, Any] = {}
        self._held: dict[Place, Any] = {}
        self._actions: list[Any] = []
        self._seen: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode, and a new record."""
        dice = self.env.unwrapped.np_random.bit_generator.state
        self._start = {"random": dice} if seed is None else {"seed": seed}
        self._held, self._actions = _kept(self._layers), []
        result = faults.reset(self.env, seed, _CHECK_RESET, options=options)
        return self._own(result, rewards=0.0)

    def step(self, action: Any) -> Any:
        """Plays an action."""
        self._actions.append(np.array(action))
        result = faults.step(self.env, action, self._start.get("seed"), _CHECK_STEP)
        return self._own(result, rewards=self._seen["rewards"] + float(result[1]))

    def get_state(self) -> dict[str, Any]:
        """How the episode began, the actions since, and what came of them."""
        held = self._held.items()
        changed = [[[*place], v] for place, v in held if not _alike(v, self._made.get(place))]
        start = self._start | {"kept": changed}
        return {"start": start, "actions": np.array(self._actions), "seen": self._seen}

    def set_state(self, state: dict[str, Any]) -> None:
        """Plays the episode up to where it was; `EnvironmentFault` if it leads elsewhere."""
        start, dice = state["start"], _dice_of_the_process()
        self._keep(start["kept"])
        if "random" in start:
            self.env.unwrapped.np_random.bit_generator.state = start["random"]
        self.reset(seed=start.get("seed"))
        for action in state["actions"]:
            self.step(action)
        differing = [
            f"its {name} is {self._seen[name]}, and was {was}"
            for name, was in state["seen"].items()
            if not np.array_equal(was, self._seen[name])
        ]
        if dice != _dice_of_the_process():
            differing.append("it draws from the generators of the process")
        if differing:
            raise EnvironmentFault(
                f"{self.env} cannot be put back where it was after {len(self._actions)} actions:"
                f" {' '.join(differing[0].split())[:200]}; let it draw from its np_random alone,"
                " and keep over episodes only numbers, texts, and arrays of them"
            )

    def _keep(self, changed: Sequence[tuple[Sequence[Any], Any]]) -> None:
        """Makes the world keep this, and else what it was made with."""
        kept = self._made | {tuple(place): value for place, value in changed}
        for (layer, name, *inner), value in kept.items():
            held = self._layers[layer]
            if inner:
                held, (name,) = _inner(held.get(name)), inner
            if not _alike(_copy(held.get(name)), value):
                held[name] = _copy(value)

    def _own(self, result: tuple[Any, ...], rewards: float) -> tuple[Any, ...]:
        """What a reset or a step returned, with a copy of the observation, which is noted."""
        observation = deepcopy(result[0])
        self._seen = {"observation": observation, "rewards": rewards}
        return observation, *result[1:]


def _dice_of_the_process() -> tuple[int, ...]:
    """Tells whether anything draws from the global generators."""
    _, words, place, *_ = np.random.get_state()
    return hash(random.getstate()), hash(words.tobytes()), place


Place = tuple[Any, ...]
"""Number of a layer, name of an attribute of it, and of one of what that is, if it is an object."""


def _kept(layers: Sequence[dict[str, Any]]) -> dict[Place, Any]:
    """Copies of what a world and its wrappers keep from one episode to the next.

    Counts, levels, statistics: Gymnasium has no call for them. They are read where they lie:
    numbers, texts, and arrays and lists of them, among the attributes of each layer, and of objects
    in them that hold nothing else, such as the running means of `NormalizeObservation`.
    """
    found: dict[Place, Any] = {}
    for layer, held in enumerate(layers):
        for name, value in held.items():
            if _is_kept(value):
                found[layer, name] = _copy(value)
            elif (inner := _inner(value)) and all(map(_is_kept, inner.values())):
                found |= {(layer, name, part): _copy(v) for part, v in inner.items()}
    return found


def _inner(part: Any) -> dict[str, Any]:
    """The attributes of an object; none of what is constant, or no object."""
    inner = getattr(part, "__dict__", None)
    return inner if type(inner) is dict and not isinstance(part, gym.Space) else {}


def _alike(value: Any, other: Any) -> bool:
    if not isinstance(value, np.ndarray):
        return type(value) is type(other) and value == other
    same = isinstance(other, np.ndarray) and value.dtype == other.dtype
    return same and np.array_equal(value, other)


def _is_kept(value: Any) -> bool:
    kind = type(value)  # the commonest first, since every episode asks
    if kind in _SIMPLE:
        return True
    if kind is list:
        return len(value) <= MOST_KEPT and _SIMPLE.issuperset(map(type, value))
    is_array = isinstance(value, np.ndarray | np.generic)
    return is_array and value.dtype.kind in "biuf" and value.size <= MOST_KEPT


def _copy(value: Any) -> Any:
    """Scalars of numpy become arrays, which keep their type on disk."""
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    return list(value) if type(value) is list else value
