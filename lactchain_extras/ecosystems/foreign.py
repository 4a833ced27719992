"""Games of TextArena and GEM as Gymnasium environments that speak and hear text.

They are played by what they can do, and neither package is imported before a world is made.
What is repaired for all of them:

- **Seeds.** Their dice are the global ones of the process, which whoever plays beside them shakes
  too, and which a reset without a seed leaves as they are: each member of a group guesses another
  word. Here every world has dice of its own, set by the seed of `reset`.
- **Truncation.** A game that its time limit cuts has not ended.
- **Success.** A game is won that ended by itself and paid what its package pays for a win: neither
  credit for a good try nor an ending by an illegal move is a success.

Each class says what else it repairs. What cannot be repaired is said once, in the log.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from threading import RLock
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from lactchain.environments.views import TextView
from lactchain.errors import ConfigError
from lactchain_extras.ecosystems.free_text import HEARD, SAID, shown, spoken_view

DICE = RLock()
"""Of the process: the world that plays has them, and the worlds of other threads wait."""
ANSWERED = "<｜TERMINAL_STATE｜>"
"""What GEM says to the answer of a question, which has one turn."""


class Reply(NamedTuple):
    """What a game says to a move."""

    text: str
    reward: float
    over: bool = False  # whether it takes no more moves
    cut: bool = False  # whether that is by its time limit
    won: bool = False  # whether the move has won it, unless a time limit has cut it


class ForeignWorld(gym.Env[str, str]):
    """A game of one player, who sees all that was said so far.

    ## Arguments
    - `name`: what its own package calls it.
    - `kwargs`: of the game, as its own `make` takes them.
    - `success_reward`: the last reward of a game that was won; None: 1, but for `GemWorld`.
    - `transcript`: whether an observation is all that was said, or what was said last; then
      `environment.history` can keep as much of it as there is room for.

    Raises `ConfigError` if there is no such game, or it does not take these arguments.
    """

    metadata = {"render_modes": []}
    observation_space, action_space = SAID, HEARD
    package = ""

    def __init__(
        self,
        name: str,
        kwargs: Mapping[str, Any] | None = None,
        success_reward: float | None = None,
        transcript: bool = True,
    ) -> None:
        self.name, self.kwargs = name, dict(kwargs or {})
        self.is_told_success = success_reward is not None
        self.success_reward = success_reward if self.is_told_success else 1.0
        self.transcript = transcript
        self.success = False
        self._so_far: list[str] = []
        self._dice = _dice(0)
        make = import_module(self.package).make
        try:
            with self._own_dice():
                self.game = self.made(make)
        except Exception as error:  # noqa: BLE001  these packages raise whatever they like
            problem = f"{self.package} makes no {self.name!r} of {self.kwargs}: {error!r}"
            raise ConfigError(f"environment.id: {problem}") from error

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begins a game by the seed; without one, by the next draw of this world."""
        super().reset(seed=seed)
        start = int(self.np_random.integers(2**31)) if seed is None else seed % 2**32
        self._dice, self.success = _dice(start), False
        with self._own_dice():
            self._so_far = [self.begin(start)]
        return self._shown(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Says something to the game."""
        with self._own_dice():
            reply = self.play(action)
        self._so_far += [f"> {action}", reply.text]
        cut = reply.over and reply.cut
        self.success = reply.over and not cut and reply.won
        return self._shown(), float(reply.reward), reply.over and not cut, cut, {}

    def close(self) -> None:
        """Lets the game go."""
        self.game = None

    def text_view(self) -> TextView:
        """It is text already."""
        return spoken_view()

    def begin(self, seed: int) -> str:
        """Begins a game and returns what it says; the global dice are those of the seed."""
        raise NotImplementedError

    def play(self, completion: str) -> Reply:
        """What the game replies."""
        raise NotImplementedError

    def made(self, make: Callable[..., Any]) -> Any:
        """The game, by its package's `make`."""
        return make(self.name, **self.kwargs)

    def _shown(self) -> str:
        texts = self._so_far if self.transcript else self._so_far[-1:]
        return shown("\n".join(text.strip("\n") for text in texts if text), self.name)

    @contextmanager
    def _own_dice(self) -> Iterator[None]:
        """The dice of the process are those of this world, and as they were before thereafter."""
        with DICE:
            others = random.getstate(), np.random.get_state()
            random.setstate(self._dice[0])
            np.random.set_state(self._dice[1])
            try:
                yield
            finally:
                self._dice = random.getstate(), np.random.get_state()
                random.setstate(others[0])
                np.random.set_state(others[1])


class TextArenaWorld(ForeignWorld):
    """A game of TextArena for one player.

    A game that an illegal move ends pays in part for the moves before it, so that a good guess and
    then nonsense is worth more than guessing on: it pays `illegal_reward` here; None leaves theirs.
    Its transcript goes on over resets, so the game is asked for what is new alone. It has a time
    limit where its state says `max_turns`; other limits, such as the six guesses of Wordle, are
    rules, and whoever meets them has lost.
    """

    package = "textarena"

    def __init__(
        self, name: str, *args: Any, illegal_reward: float | None = 0.0, **kwargs: Any
    ) -> None:
        self.illegal_reward = illegal_reward
        super().__init__(name, *args, **kwargs)

    def begin(self, seed: int) -> str:
        """Begins a game of one player."""
        try:
            self.game.reset(num_players=1, seed=seed)
        except AssertionError as error:
            got = f"textarena:{self.name} is of more"
            raise ConfigError(f"environment.id: expected a game of one player, {got}") from error
        return self._news()

    def play(self, completion: str) -> Reply:
        """What the game replies."""
        over, _ = self.game.step(action=completion)
        if not over:
            return Reply(self._news(), 0.0)
        rewards, infos = self.game.close()
        reward, about = float(rewards[0]), infos[0]
        text = "\n".join(filter(None, (self._news(), about.get("reason"))))
        illegal = bool(about.get("invalid_move"))
        if illegal and self.illegal_reward is not None:
            reward = self.illegal_reward
        state, won = self.game.state, not illegal and reward >= self.success_reward
        limited = state.max_turns is not None and state.turn >= state.max_turns
        return Reply(text, reward, True, limited and not illegal and not won, won)

    def made(self, make: Callable[..., Any]) -> Any:
        """The game without the wrapper that writes the transcript, where it has one."""
        try:
            return make(f"{self.name}-raw", **self.kwargs)
        except ValueError:  # a game of one form
            return make(self.name, **self.kwargs)

    def _news(self) -> str:
        """What the game has said since it was asked last, without what the player said."""
        _, news = self.game.get_observation()
        if isinstance(news, str):
            return news
        return "\n".join(text for speaker, text, *_ in news if speaker < 0)


class GemWorld(ForeignWorld):
    """An environment of GEM.

    At its time limit a game says that it is terminated and truncated both; that is truncated here.
    So does a question when it is answered, in its one turn; that is terminated here.

    Most games pay in parts as a win comes nearer, and for the win what is left. Without a
    `success_reward` a game that ended by itself is won if that paid more than 0, and a question is
    answered well if it paid 1. Of Game2048 it stays unknown: a move that makes a larger tile and
    leaves no other move is paid, and has lost.
    """

    package = "gem"

    def begin(self, seed: int) -> str:
        """Begins a game."""
        text, info = self.game.reset(seed=seed)
        return _with_suffix(text, info)

    def play(self, completion: str) -> Reply:
        """What the game replies."""
        text, reward, terminated, truncated, info = self.game.step(completion)
        if text == ANSWERED:
            return Reply("", reward, True, won=reward >= self.success_reward)
        won = reward >= self.success_reward if self.is_told_success else reward > 0
        over = bool(terminated or truncated)
        return Reply(text if over else _with_suffix(text, info), reward, over, bool(truncated), won)


def _dice(seed: int) -> tuple[Any, Any]:
    """The states of Python's and numpy's generators after this seed."""
    return random.Random(seed).getstate(), np.random.RandomState(seed).get_state()


def _with_suffix(text: str, info: Mapping[str, Any]) -> str:
    return "\n".join(filter(None, (text, info.get("suffix"))))
