"""MiniGrid and BabyAI in words: any level by its id, such as `minigrid:BabyAI-GoToLocal-v0`.

MiniGrid (Chevalier-Boisvert et al. 2023) and BabyAI (2019) are Farama's package `minigrid`. The
five levels of BALROG (Paglieri et al. 2025) are here by its names for them:
`minigrid:BabyAI-MixedTrainLocal-v0/goto`, `/pickup`, `/open`, `/putnext`, `/pick_up_seq_go_to`.
"""

import json
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from functools import cached_property
from io import StringIO
from itertools import product
from operator import attrgetter
from threading import Lock
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from minigrid.core.constants import COLOR_NAMES
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError

from lactchain.environments.faults import at_least_one
from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import RandomChains, RowPolicy
from lactchain.environments.views import State, TextView, reset_into
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain_extras.balrog_levels import MIXED, MixedLocal
from lactchain_extras.minigrid_sight import STEPS, seen

ACTION_NAMES = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
"""Those of BALROG, in MiniGrid's order. BabyAI's levels have no use for the last one."""
FACING = ("east", "south", "west", "north")
SILENCE = Lock()
"""Two threads that took stdout away at the same time would not both bring it back."""
FAILURES_OF_THE_BOT = (
    AssertionError, AttributeError, DisappearedBoxError, LookupError, TypeError, ValueError,
)  # fmt: skip
"""Its assertions, and its looking for things that are gone."""


class MiniGrid(gym.Env[np.ndarray, int]):
    """A level of MiniGrid or BabyAI with numbered tasks.

    ## Action Space
    `Discrete(6)`: turn left, turn right, go forward, pick up, drop, toggle; of MiniGrid's own
    levels `Discrete(7)`, with done.

    ## Observation Space
    `MultiDiscrete([width, height, 4])`: where the agent is and where it faces (0 east, 1 south, 2
    west, 3 north). What it sees, and its mission, its text says; it is found out for texts alone,
    since that takes nine tenths of the time of a step.

    ## Starting State
    One of the tasks, drawn uniformly: task n is what the level begins with under the seed n.
    `reset(options={"state": {"task": n, "played": [2, 2, 1]}})` goes on behind these actions.

    ## Rewards
    1 for a mission that is accomplished, whenever (the level's own falls with time); what the level
    takes away, if it does; else 0.

    ## Episode End
    As in the level; where one begins behind some actions, its time limit has counted these alone.
    `won` says whether the mission was accomplished.

    ## Arguments
    - `name`: the level's id.
    - `num_tasks`: tasks are numbered from 0.
    - `render_mode`: "ansi", "rgb_array" or None. All others are the level's, such as `max_steps`.

    Raises `ValueError` if an argument does not fit, and Gymnasium's errors of an unknown level.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    def __init__(
        self, name: str, num_tasks: int = 500, render_mode: str | None = None, **kwargs: Any
    ) -> None:
        self.num_tasks = at_least_one("num_tasks", num_tasks)
        self.render_mode = render_mode
        kwargs["render_mode"] = "rgb_array" if render_mode == "rgb_array" else None
        if name.startswith(MIXED):
            self.level = MixedLocal(name.removeprefix(MIXED), **kwargs)
        else:
            self.level = gym.make(name, disable_env_checker=True, **kwargs).unwrapped
        self.level.gen_obs = dict  # it would look around after every action; `_seen` does, once
        self.observation_space = spaces.MultiDiscrete([self.level.width, self.level.height, 4])
        self.action_space = spaces.Discrete(6 if isinstance(self.level, RoomGridLevel) else 7)
        self.task, self.played, self.won = 0, [], False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode, of a drawn task or in `options["state"]`."""
        super().reset(seed=seed)
        state = (options or {}).get("state")
        if state is None:
            state = {"task": int(self.np_random.integers(self.num_tasks)), "played": []}
        self.task, self.played, self.won = _checked(state, self), [], False
        with SILENCE, redirect_stdout(StringIO()):  # it prints which missions it has drawn anew
            self.level.reset(seed=self.task)
        for action in state["played"]:
            _, _, terminated, truncated, _ = self.step(action)
            if terminated or truncated:
                raise ValueError(f"state: expected one in which no episode is over, got {state}")
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Plays one action; what changes nothing leaves the state as it was."""
        before = self._around()
        _, reward, terminated, truncated, _ = self.level.step(action)
        if before != self._around() or hasattr(self.level, "obstacles"):  # these move by themselves
            self.played.append(int(action))
        self.won = terminated and reward > 0
        reward = 1.0 if self.won else float(min(reward, 0))
        return self._observation(), reward, terminated, truncated and not terminated, {}

    def render(self) -> str | np.ndarray | None:
        """The level in pixels, or in letters."""
        return self.level.pprint_grid() if self.render_mode == "ansi" else self.level.render()

    def text_view(self) -> TextView:
        """Any level in words.

        Fields: mission, carrying; x, y and facing; what is seen, the nearest first, as from above
        (seen_at), by compass from the agent (seen_around), as the agent sees it (seen) and in few
        words (near), which has what the mission does not name behind a semicolon; free steps to the
        next wall or thing that the mission does not name: ahead, left, right. Without a setting
        words are absolute; `relative` has them as the agent sees it.
        """
        is_babyai = isinstance(self.level, RoomGridLevel)
        return TextView(
            action_names=ACTION_NAMES[: int(self.action_space.n)],
            template="Mission: {mission}.\nYou are at ({x}, {y}) and face {facing}."
            " You see {seen_at}. You carry {carrying}.{feedback}",
            # Who is not told that a step came to nothing takes it for ever.
            brief="{mission}; {near}; {ahead} {left} {right}; {carrying}{feedback}",
            relative="Mission: {mission}.\nYou see {seen}. There are {ahead} free steps ahead of"
            " you, {left} on your left and {right} on your right. You carry {carrying}.{feedback}",
            describe=_describe,
            get_state=attrgetter("unwrapped.state"),
            set_state=reset_into,
            states=_tasks,
            position=_position,
            success=attrgetter("unwrapped.won"),
            max_chains=16,
            rare_words=" ".join((*COLOR_NAMES, "key ball box door open closed locked goal")),
            policies={"bot": Bot} if is_babyai else {},
            competent="bot" if is_babyai else None,
            picture=Picture(self.level.width, self.level.height, _Scenes(self)),
        )

    @property
    def state(self) -> State:
        """The task, and the actions that have changed something since its beginning."""
        return {"task": self.task, "played": [*self.played]}

    def _observation(self) -> np.ndarray:
        return np.array([*self.level.agent_pos, self.level.agent_dir])

    def _around(self) -> tuple[Any, ...]:
        """All that an action may change."""
        level = self.level
        x, y = level.agent_pos
        right, down = STEPS[level.agent_dir]
        ahead = level.grid.get(x + right, y + down)
        return x, y, level.agent_dir, level.carrying, ahead, ahead and ahead.encode()


def _checked(state: State, world: MiniGrid) -> int:
    """The task of a state; `ValueError` of what is none."""
    actions = range(int(world.action_space.n))
    if isinstance(state, Mapping):
        task, played = state.get("task"), state.get("played")
        is_task = type(task) is int and 0 <= task < world.num_tasks
        if is_task and isinstance(played, list) and all(action in actions for action in played):
            return task
    what = f"a task below {world.num_tasks}, and what was played in it as numbers of actions"
    raise ValueError(f"state: expected {what}, got {state}")


def _describe(env: gym.Env, observation: np.ndarray, info: Any) -> dict[str, object]:
    level = env.unwrapped.level
    x, y, facing = observation.tolist()
    east, south = STEPS[facing]
    things, walls = seen(level)
    named, at, around, ahead_of = [], [], [], []
    for ahead, right, thing in things:
        across, down = ahead * east - right * south, ahead * south + right * east
        named.append(_thing(thing))
        at.append(f"at ({x + across}, {y + down})")
        around.append(_both(_sides(across, "west", "east"), _sides(down, "north", "south")))
        ahead_of.append(_both(_steps(ahead, "ahead"), _sides(right, "left", "right")))
    wanted, others = [], []  # in few words
    for (ahead, right, thing), *words in zip(things, named, ahead_of, strict=True):
        is_other = not _is_named(thing, level.mission)
        (others if is_other else wanted).append(" ".join(words).replace(" and", ""))
        if is_other and not thing.can_overlap():
            walls.add((ahead, right))
    far = level.agent_view_size
    return {
        "mission": level.mission,
        "x": x,
        "y": y,
        "facing": FACING[facing],
        "carrying": _article(_thing(level.carrying)) if level.carrying else "nothing",
        "seen_at": _listed(named, at),
        "seen_around": _listed(named, around),
        "seen": _listed(named, ahead_of),
        "near": ", ".join(wanted) + (f"; {', '.join(others)}" if others else ""),
        "ahead": next(free for free in range(far) if free + 1 == far or (free + 1, 0) in walls),
        "left": _free(walls, -1, far // 2),
        "right": _free(walls, 1, far // 2),
    }


def _is_named(thing: Any, mission: str) -> bool:
    """Whether a mission names a thing, by its kind alone or by its colour too."""
    return re.search(rf"\b(a|the) ({thing.color} )?{thing.type}\b", mission) is not None


def _free(walls: set[tuple[int, int]], side: int, far: int) -> int:
    """Steps to the side before a wall, as far as one sees."""
    return next(free for free in range(far + 1) if free == far or (0, side * (free + 1)) in walls)


def _thing(thing: Any) -> str:
    """A thing in words; of a door, whether it is open."""
    if thing.type != "door":
        return f"{thing.color} {thing.type}"
    kind = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
    return f"{kind} {thing.color} door"


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _steps(count: int, where: str) -> str:
    return f"{count} {where}" if count else ""


def _sides(count: int, less: str, more: str) -> str:
    return _steps(abs(count), less if count < 0 else more)


def _both(one: str, other: str) -> str:
    return " and ".join(filter(None, (one, other)))


def _listed(names: list[str], places: list[str]) -> str:
    things = [f"{_article(name)} {place}" for name, place in zip(names, places, strict=True)]
    return ", ".join(things) or "nothing"


def _tasks(env: gym.Env) -> list[State]:
    return [{"task": task, "played": []} for task in range(env.unwrapped.num_tasks)]


def _position(env: gym.Env) -> list[int]:
    level = env.unwrapped.level
    return [*map(int, level.agent_pos), (int(level.agent_dir) + 1) % 4]


class Bot(RowPolicy):
    """BabyAI's own bot, which knows what it has seen since its task began.

    It reads states, not texts. A chain ends where something comes into sight, since what the bot
    does then nobody can know who has read what was seen before. Where the bot itself fails, as it
    may behind actions that it would not have taken, an action is drawn.

    Raises:
        ValueError: the environment is not a level of BabyAI.
    """

    name, reads_states = "bot", True

    def __init__(self, env: LanguageEnv) -> None:
        world = env.env.unwrapped
        if not (isinstance(world, MiniGrid) and isinstance(world.level, RoomGridLevel)):
            raise ValueError(f"world: expected a level of BabyAI, got {world}")
        self.grammar, self._random = env.grammar, RandomChains(env.grammar, 1)
        self._world = deepcopy(world)
        self._game: _Game | None = None

    def complete(self, text: str, seed: int) -> str:
        """The bot's next actions in a state, given as JSON."""
        state = json.loads(text)
        try:
            if self._game is None or not self._game.leads_to(state):
                self._game = _Game(self._world, state["task"])
            for action in state["played"][len(self._world.played) :]:
                self._game.take(action)
            return self.grammar.render(self._chain(self._game))
        except FAILURES_OF_THE_BOT:
            self._game = None
            return self._random.complete(text, seed)

    def _chain(self, game: "_Game") -> list[int]:
        chain = []
        while len(chain) < self.grammar.max_chain_length and not (chain and game.is_news):
            chain.append(game.take(game.suggestion))
        return chain


class _Game:
    """A task that the bot has followed from its beginning.

    Attributes:
        suggestion: the bot's next action.
        is_news: whether the last one brought something into sight, or ended the episode.
    """

    def __init__(self, world: MiniGrid, task: int) -> None:
        world.reset(options={"state": {"task": task, "played": []}})
        self._world, self._bot, self.is_news = world, BabyAIBot(world.level), False
        self.suggestion = int(self._bot.replan())

    def leads_to(self, state: State) -> bool:
        """Whether a state is this one, or follows from it."""
        task, played = self._world.task, self._world.played
        return task == state["task"] and played == state["played"][: len(played)]

    def take(self, action: int) -> int:
        """Plays an action, and returns it."""
        seen = self._bot.vis_mask.sum()
        *_, terminated, truncated, _ = self._world.step(action)
        self.is_news = terminated or truncated
        if not self.is_news:
            self.suggestion = int(self._bot.replan(action))
            self.is_news = self._bot.vis_mask.sum() > seen
        return action


class _Scenes:
    """What states look like, found by playing up to them."""

    KINDS = {"wall": "wall", "door": "place", "goal": "goal", "lava": "danger", "floor": "place"}

    def __init__(self, world: MiniGrid) -> None:
        self._like = world

    @cached_property
    def _world(self) -> MiniGrid:
        return deepcopy(self._like)

    def __call__(self, state: State) -> Scene:
        self._world.reset(options={"state": state})
        level = self._world.level
        marks = tuple(
            Mark(x, y, self.KINDS.get(cell.type, "item"), self._letters(cell))
            for x, y in product(range(level.width), range(level.height))
            if (cell := level.grid.get(x, y)) is not None
        )
        return Scene((*_position(self._world),), marks, f"task {state['task']}: {level.mission}")

    @staticmethod
    def _letters(cell: Any) -> str:
        return "" if cell.type in ("wall", "lava", "goal") else f"{cell.color[:2]} {cell.type}"
