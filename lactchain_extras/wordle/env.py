"""Wordle by LMRL-Gym's rules (Abdulhai et al. 2023), with any words."""

from collections.abc import Mapping, Sequence
from itertools import starmap
from operator import attrgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.faults import at_least_one, rewards_of
from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import RowPolicy
from lactchain.environments.views import Outcome, State, TextView, reset_into
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain.types import Reward
from lactchain_extras.wordle.words import (
    ALPHABET,
    MARKS,
    NUM_LETTERS,
    SOLVED,
    board_text,
    coloured_row,
    is_turn,
    is_word,
    kept,
    pattern_marks,
    read_board,
    word_list,
    word_tables,
)

CLUES_TEMPLATE = "{tries_left} tries\nabsent {absent}\nelsewhere {elsewhere}\nknown {known}\n"
KINDS = {"g": "hit", "y": "near", "b": "miss"}
"""What a picture calls the marks of a letter: in the right place, elsewhere, absent."""


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
        self.require_words, self.letters_apart = require_words, letters_apart
        self.invalid_reward, self.reward, self.render_mode = invalid_reward, reward, render_mode
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
            return self._refuse(_letters_together(action))
        if not 0 <= action < len(self.tables.words):
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        before, guess = self._observation(), self.tables.words[action]
        self._learn(guess, self._mark(guess))
        if self.reward is None:
            return self._outcome(0.0 if self.solved else -1.0)
        transition = before[None], np.array([action]), self._observation()[None]
        return self._outcome(float(rewards_of(self.reward, *transition)[0]))

    @property
    def board(self) -> str:
        """The game as a player reads it."""
        return board_text(self.guesses, self.feedback)

    def render(self) -> str | np.ndarray:
        """The board; in colours, where it is drawn for a terminal, or in pixels."""
        if self.render_mode == "rgb_array":
            from lactchain_extras.canvas import pixels

            return pixels(self)
        if self.render_mode == "ansi":
            return "\n".join(map(coloured_row, self.guesses, self.feedback))
        return self.board

    def text_view(self) -> TextView:
        """The same game in LMRL-Gym's words, the whole of it in every observation.

        Fields: board (the game so far), tries_left, and what `clues` says of the letters (known,
        elsewhere, absent): `CLUES_TEMPLATE` shows these alone. The only state that it lists is the
        empty game. Spaces between the letters of a guess do not matter.
        """
        words = self.tables.words
        every_square = _squares(np.ones((len(ALPHABET), NUM_LETTERS), dtype=bool))
        return TextView(
            action_names=tuple(map(" ".join, words)) if self.letters_apart else words,
            template="{board}",
            describe=_describe,
            get_state=attrgetter("unwrapped.state"),
            set_state=reset_into,
            states=_states,
            outcomes=_outcomes if self.reward is None else None,
            success=attrgetter("unwrapped.solved"),
            spelling=_letters_apart if self.letters_apart else _letters_together,
            step_takes_text=True,
            max_chains=self.num_tries,
            brief="{tries_left} {absent} {elsewhere} {known}",
            rare_words=f" {every_square} {every_square.upper()}",
            policies={"consistent": ConsistentWords},
            competent="consistent",
            picture=Picture(NUM_LETTERS, self.num_tries, _scene),
        )

    def _refuse(self, guess: str) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """A guess that is not listed gets no marks, unless any word may be guessed."""
        if self.require_words or not is_word(guess):
            self._learn(kept(guess), "")
        else:
            self._learn(guess, self._mark(guess))
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


class ConsistentWords(RowPolicy):
    """In Wordle, a random word among those that fit all feedback; a subclass may `choose` others.

    Raises:
        ValueError: the environment is not Wordle.
    """

    name = "consistent"

    def __init__(self, env: LanguageEnv) -> None:
        if not isinstance(env.env.unwrapped, Wordle):
            raise ValueError(f"world: expected Wordle, got {env.env.unwrapped}")
        self.grammar = env.grammar
        self.num_tries = env.env.unwrapped.num_tries
        self.tables = env.env.unwrapped.tables

    def complete(self, text: str, seed: int) -> str:
        """The next word of the game that the text ends with."""
        guesses, feedback = read_board(text)
        words = np.flatnonzero(self.tables.fitting(guesses, feedback))
        return self.grammar.render([self.choose(words, self.num_tries - len(guesses), seed)])

    def choose(self, words: np.ndarray, tries: int, seed: int) -> int:
        """The number of the next word, by those (n,) that fit and the guesses that are left."""
        return int(np.random.default_rng(seed).choice(words))


def clues(knowledge: np.ndarray) -> dict[str, str]:
    """What is known of the letters, in words; it says all that the marks say.

    Args:
        knowledge: (26, 5), as `Wordle` observes it.

    Returns:
        known: letters with their places, `E5 H2`; elsewhere: letters of the word with a place where
        each is not, `s1`; absent: letters that the word has not, as capitals. `-` where there are
        none.
    """
    absent = ~knowledge.any(axis=1)
    elsewhere = (knowledge == 0) & ~absent[:, None]
    return {
        "known": _squares(knowledge == 2).upper() or "-",
        "elsewhere": _squares(elsewhere) or "-",
        "absent": " ".join(ALPHABET[row] for row in np.flatnonzero(absent)).upper() or "-",
    }


def _squares(marked: np.ndarray) -> str:
    """The marked ones (26, 5) among all letters with their places, which are counted from 1."""
    squares = np.argwhere(marked).tolist()
    return " ".join(f"{ALPHABET[letter]}{place + 1}" for letter, place in squares)


def _describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, object]:
    game = env.unwrapped
    tries_left = game.num_tries - len(game.guesses)
    return {"board": game.board, "tries_left": tries_left} | clues(game.knowledge)


def _states(env: gym.Env) -> list[State]:
    return [{"guesses": [], "feedback": []}]


def _outcomes(env: gym.Env, action: int) -> list[Outcome]:
    """The marks that a guess may get; the hidden word is any of those that fit."""
    game = env.unwrapped
    patterns, counts = np.unique(game.tables.patterns[action, game.fits], return_counts=True)
    guesses, last_try = [*game.guesses, game.tables.words[action]], game.num_tries - 1
    outcomes = []
    for pattern, share in zip(patterns.tolist(), counts / counts.sum(), strict=True):
        over = pattern == SOLVED or len(game.guesses) == last_try
        state = {"guesses": guesses, "feedback": [*game.feedback, pattern_marks(pattern)]}
        outcomes.append(Outcome(share, 0.0 if pattern == SOLVED else -1.0, None if over else state))
    return outcomes


def _letters_together(text: str) -> str:
    return text.strip().replace(" ", "")


def _letters_apart(text: str) -> str:
    return " ".join(_letters_together(text))


def _scene(state: State) -> Scene:
    """The guesses, their letters coloured; what was no guess struck through."""
    turns = [*zip(state["guesses"], state["feedback"], strict=False)]
    if {*state} != {"guesses", "feedback"} or not all(starmap(is_turn, turns)):
        raise ValueError(f"state: expected a game, got {state}")
    return Scene(marks=tuple(mark for row, turn in enumerate(turns) for mark in _row(row, *turn)))


def _row(row: int, guess: str, marks: str) -> list[Mark]:
    if not marks:
        return [Mark(0, row, "struck", guess or "(nothing)")]
    letters = zip(guess.upper(), marks, strict=True)
    return [Mark(x, row, KINDS[mark], letter) for x, (letter, mark) in enumerate(letters)]
