"""Wordle by LMRL-Gym's rules (Abdulhai et al. 2023), with any words; alone and as a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lactchain.environments.checks import at_least_one, rewards_of, start_state
from lactchain.environments.views import TextView
from lactchain.functional.random_streams import draw, stream
from lactchain.types import Reward
from lactchain_extras.wordle.words import (
    ALPHABET,
    COLOURS,
    MARKS,
    NUM_LETTERS,
    SOLVED,
    board_text,
    coloured_row,
    is_turn,
    is_word,
    kept,
    pattern_marks,
    word_list,
    word_tables,
)

_SHOWN = 20  # letters of an invalid guess that a picture has room for


class Wordle(gym.Env[np.ndarray, int]):
    """Guess the hidden word; LMRL-Gym's rules.

    ## Description
    Each guess is marked letter by letter: in its place, elsewhere in the word, or absent. Repeated
    letters are not counted. The hidden word is drawn anew at every turn, uniformly from the words
    that fit all marks so far.

    ## Action Space
    `Discrete(W)`: the guess, a word of the list by its number. `step` takes text as well, which
    stands for a completion that is no word of the list: it uses up a try.

    ## Observation Space
    `MultiDiscrete([3] * 130 + [num_tries + 1])`: for each letter a to z and each of the five places
    0 not here, 1 possible, 2 here; then the tries that are used.

    ## Starting State
    Nothing is known. `reset(options={"state": {"guesses": ["shire"], "feedback": ["byggb"]}})`
    starts in the middle of a game; empty feedback is that of an invalid guess.

    ## Rewards
    0 for the hidden word, else −1; `invalid_reward` for text that is no word of the list. A
    `reward` of one's own takes the place of the first two.

    ## Episode End
    Terminated: the word is guessed, or all tries are used.

    ## Information
    - `num_fitting`: words that fit all marks.

    ## Arguments
    - `words`: a file with one word a line, or the words; None: `five_letter_words.txt`, 595 common
      words of SCOWL (Kevin Atkinson; see five_letter_words.LICENSE).
    - `num_tries`: 6 in LMRL-Gym.
    - `require_words`: whether other five letters than those of a word are invalid; if not, they are
      marked, and rewarded as invalid all the same.
    - `invalid_reward`: −1; LMRL-Gym trains with −10.
    - `letters_apart`: whether a player in words says `s h i r e`, as in LMRL-Gym, for tokens that
      are letters, or `shire`, for tokens that are words. The board always shows letters apart.
    - `reward`: None for the above, or an object with `reward(state, action, next_state)` over
      batches of observation rows.
    - `render_mode`: "ansi" (coloured tiles), "rgb_array" or None.

    Raises `ValueError` or `DataError` if a word has other than five letters a-z.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}

    def __init__(
        self,
        words: str | Sequence[str] | None = None,
        num_tries: int = 6,
        require_words: bool = True,
        invalid_reward: float = -1.0,
        letters_apart: bool = True,
        render_mode: str | None = None,
        reward: Reward | None = None,
    ) -> None:
        self.num_tries = at_least_one("num_tries", num_tries)
        self.tables = word_tables(word_list(words))
        self.require_words = require_words
        self.invalid_reward = invalid_reward
        self.letters_apart = letters_apart
        self.reward = reward
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(self.tables.words))
        places = len(ALPHABET) * NUM_LETTERS
        self.observation_space = spaces.MultiDiscrete([3] * places + [num_tries + 1])
        self._begin()

    @property
    def solved(self) -> bool:
        """Whether the last guess was the hidden word."""
        return self.feedback[-1:] == [MARKS[2] * NUM_LETTERS]

    @property
    def state(self) -> dict[str, list[str]]:
        """The game so far, as `reset` takes it; JSON can hold it."""
        return {"guesses": [*self.guesses], "feedback": [*self.feedback]}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts a game, or goes on with that in `options["state"]`."""
        super().reset(seed=seed)
        self._begin()
        if options and "state" in options:
            self._replay(options["state"])
        return self._observation(), self._info()

    def step(self, action: int | str) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Guesses a word of the list; text that is none uses up a try."""
        if isinstance(action, str):
            return self._refuse(action.strip().replace(" ", ""))
        if not 0 <= action < len(self.tables.words):
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        before, guess = self._observation(), self.tables.words[action]
        self._learn(guess, self._mark(guess))
        if self.reward is None:
            return self._outcome(0.0 if self.solved else -1.0)
        told = before[None], np.array([action]), self._observation()[None]
        return self._outcome(float(rewards_of(self.reward, *told)[0]))

    @property
    def board(self) -> str:
        """The game as a player reads it."""
        return board_text(self.guesses, self.feedback)

    def render(self) -> str | np.ndarray:
        """The board; in colours, where it is drawn for a terminal, or in pixels."""
        if self.render_mode == "rgb_array":
            return self._pixels()
        return self._tiles() if self.render_mode == "ansi" else self.board

    def text_view(self) -> TextView:
        """The same game in words."""
        from lactchain_extras.wordle.view import wordle_view

        return wordle_view(self)

    def _pixels(self) -> np.ndarray:
        from lactchain.worlds.canvas import INK, PAPER, WALL, Canvas

        canvas = Canvas(NUM_LETTERS, self.num_tries)
        for row in range(self.num_tries):
            for place in range(NUM_LETTERS):
                canvas.box(place, row, None)
        for row, (guess, marks) in enumerate(zip(self.guesses, self.feedback, strict=True)):
            for place, (letter, mark) in enumerate(zip(guess, marks, strict=False)):
                canvas.box(place, row, COLOURS[mark])
                canvas.text(place + 0.5, row + 0.5, letter.upper(), PAPER)
            if not marks:  # no word of the list
                canvas.text(NUM_LETTERS / 2, row + 0.5, guess[:_SHOWN] or "(nothing)", INK, 0.3)
                canvas.line([(0.4, row + 0.5), (NUM_LETTERS - 0.4, row + 0.5)], WALL)
        return canvas.pixels()

    def _tiles(self) -> str:
        rows = zip(self.guesses, self.feedback, strict=True)
        return "\n".join(coloured_row(guess, marks) for guess, marks in rows)

    def _refuse(self, said: str) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """A guess that is not listed gets no marks, unless any word may be guessed."""
        if self.require_words or not is_word(said):
            self._learn(kept(said), "")
        else:
            self._learn(said, self._mark(said))
        return self._outcome(self.invalid_reward)

    def _begin(self) -> None:
        self.guesses: list[str] = []
        self.feedback: list[str] = []
        self.fits = np.ones(len(self.tables.words), dtype=bool)
        self.knowledge = np.ones((len(ALPHABET), NUM_LETTERS), dtype=np.int64)

    def _replay(self, state: Mapping[str, Sequence[str]]) -> None:
        try:
            turns = list(zip(state["guesses"], state["feedback"], strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"state: expected guesses and feedback, got {state}") from error
        for guess, marks in turns:
            if not is_turn(guess, marks):
                raise ValueError(f"state: expected five letters and marks, got {guess!r} {marks!r}")
            self._learn(guess, marks)
        if len(self.guesses) >= self.num_tries or self.solved or not self.fits.any():
            raise ValueError(f"state: expected a game that goes on, got {state}")

    def _mark(self, guess: str) -> str:
        """The marks by a word that fits, drawn for this turn."""
        row = self.tables.marks_by(guess)
        return pattern_marks(int(row[self.np_random.choice(np.flatnonzero(self.fits))]))

    def _learn(self, guess: str, marks: str) -> None:
        self.guesses.append(guess)
        self.feedback.append(marks)
        self.fits &= self.tables.fitting([guess], [marks])
        for place, mark in enumerate(marks):
            letter = ALPHABET.index(guess[place])
            if mark == "b":
                self.knowledge[letter] = 0
            else:
                self.knowledge[letter, place] = 2 if mark == "g" else 0

    def _outcome(self, reward: float) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        terminated = self.solved or len(self.guesses) >= self.num_tries
        return self._observation(), reward, terminated, False, self._info()

    def _observation(self) -> np.ndarray:
        return np.append(self.knowledge.ravel(), len(self.guesses))

    def _info(self) -> dict[str, Any]:
        return {"num_fitting": int(self.fits.sum())}


class WordleVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many copies of `Wordle` stepped as one numpy batch.

    Observations, actions, rewards and arguments are `Wordle`'s. A copy that ends is reset in the
    same step (`AutoresetMode.SAME_STEP`), and each copy draws its hidden words from its own stream,
    a function of (seed, copy).

    Attributes:
        fits: (num_envs, W), the words that fit all marks of each game.

    ## Information
    - `num_fitting` (num_envs,): words that fit all marks, after a reset if there was one.
    - `final_obs` (num_envs, 131), there when some copy ended: what the action led to, before any
      reset; `_final_obs` (num_envs,) says which ended.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 1, **kwargs: Any) -> None:
        single = self._single = Wordle(**kwargs)
        self.num_envs, self.num_tries, self.tables = num_envs, single.num_tries, single.tables
        self._reward = single.reward
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self.fits = np.ones((num_envs, len(self.tables.words)), dtype=bool)
        self._observations = np.ones((num_envs, *single.observation_space.shape), dtype=np.int64)
        self._begin(np.arange(num_envs))
        self._seed(self.np_random_seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts a game in every copy; `options["state"]` is one to go on with, as in `Wordle`."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed(seed)
        state = start_state(options)
        self._begin(np.arange(self.num_envs))
        if state is not None:
            self._observations[:] = self._single.reset(options={"state": state})[0]
            self.fits[:] = self._single.fits
        return self._observations.copy(), self._infos()

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Guesses a word in every copy; resets the copies that end."""
        actions = np.asarray(actions, dtype=np.int64)
        if actions not in self.action_space:
            raise ValueError(f"actions: expected elements of {self.action_space}, got {actions}")
        before = None if self._reward is None else self._observations.copy()
        rows = self.tables.patterns[actions]
        patterns = np.take_along_axis(rows, self._hidden()[:, None], axis=1)
        self.fits &= rows == patterns
        self._learn(actions, patterns[:, 0])
        solved = patterns[:, 0] == SOLVED
        terminated = solved | (self._observations[:, -1] >= self.num_tries)
        rewards = np.where(solved, 0.0, -1.0)
        if self._reward is not None:
            rewards = rewards_of(self._reward, before, actions, self._observations.copy())
        infos: dict[str, Any] = {}
        if terminated.any():
            infos = {"final_obs": self._observations.copy(), "_final_obs": terminated}
            self._begin(np.flatnonzero(terminated))
        truncated = np.zeros(self.num_envs, dtype=bool)
        return self._observations.copy(), rewards, terminated, truncated, infos | self._infos()

    def _hidden(self) -> np.ndarray:
        """Numbers (num_envs,) of words that fit, drawn for this turn."""
        drawn = draw(self._streams, self._num_draws, self.fits.sum(axis=1).astype(np.uint64))
        self._num_draws += np.uint64(1)
        return (self.fits.cumsum(axis=1) > drawn.astype(np.int64)[:, None]).argmax(axis=1)

    def _learn(self, actions: np.ndarray, patterns: np.ndarray) -> None:
        """Notes what the marks say of each letter, place by place, as `Wordle` does."""
        copies, letters = np.arange(self.num_envs), self.tables.letters[actions]
        knowledge = self._observations[:, :-1].reshape(self.num_envs, -1, NUM_LETTERS)
        for place in range(NUM_LETTERS):
            letter, mark = letters[:, place], patterns // 3**place % 3
            knowledge[copies, letter, place] = np.where(mark == 2, 2, 0)
            knowledge[copies[mark == 0], letter[mark == 0]] = 0
        self._observations[:, :-1] = knowledge.reshape(self.num_envs, -1)
        self._observations[:, -1] += 1

    def _begin(self, copies: np.ndarray) -> None:
        self.fits[copies] = True
        self._observations[copies, :-1], self._observations[copies, -1] = 1, 0

    def _seed(self, seed: int) -> None:
        self._streams = stream(seed, np.arange(self.num_envs, dtype=np.uint64))
        self._num_draws = np.zeros(self.num_envs, dtype=np.uint64)

    def _infos(self) -> dict[str, Any]:
        return {"num_fitting": self.fits.sum(axis=1)}
