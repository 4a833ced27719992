"""Wordle by the rules of LMRL-Gym (Abdulhai et al. 2023), with any list of five-letter words.

What is known of the hidden word is the set of words that fit all feedback so far. In LMRL-Gym it is
written as knowledge of each letter in each place; both say the same, and a test holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.errors import DataError

NUM_LETTERS = 5
MARKS = "byg"  # absent, elsewhere, in its place
SOLVED = 3**NUM_LETTERS - 1  # the pattern of five g
OPENING = "Wordle:\n"
CLUES_TEMPLATE = "{tries_left} tries\nabsent {absent}\nelsewhere {elsewhere}\nknown {known}\n"

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_PLACE_VALUES = 3 ** np.arange(NUM_LETTERS)
_WORDS_FILE = Path(__file__).with_name("five_letter_words.txt")
_LONGEST_NONSENSE = 200  # letters of an invalid guess that are kept


def read_words(path: str | Path) -> tuple[str, ...]:
    """The words of a file, one a line.

    Raises:
        DataError: there is no such file, or a line is no word of five letters a-z, or a second one.
    """
    try:
        rows = Path(path).read_text(encoding="utf-8").splitlines()
        return _checked(rows)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error


class WordTables:
    """A list of W words, and how they mark each other.

    Attributes:
        words: the W words.
        index: the number of each word.
        letters: (W, 5), 0 for a to 25 for z.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words
        self.index = {word: number for number, word in enumerate(words)}
        self.letters = np.array([_letters(word) for word in words])
        self._holds = np.zeros((len(words), len(_ALPHABET)), dtype=bool)
        np.put_along_axis(self._holds, self.letters, True, axis=1)

    @cached_property
    def patterns(self) -> np.ndarray:
        """(W, W), the pattern that guess i gets when word j is hidden; W² bytes."""
        return np.stack([self.patterns_of(word) for word in self.words])

    def patterns_of(self, guess: str) -> np.ndarray:
        """The pattern (W,) that any guess gets from each hidden word: Σ_i 3^i mark_i."""
        letters = _letters(guess)
        marks = np.where(self.letters == letters, 2, self._holds[:, letters])
        return (marks @ _PLACE_VALUES).astype(np.uint8)

    def fitting(self, guesses: Sequence[str], feedback: Sequence[str]) -> np.ndarray:
        """Which words (W,) fit all feedback; guesses with empty feedback tell nothing."""
        fits = np.ones(len(self.words), dtype=bool)
        for guess, marks in zip(guesses, feedback, strict=True):
            if marks:
                fits &= self.marks_by(guess) == pattern_number(marks)
        return fits

    def marks_by(self, guess: str) -> np.ndarray:
        """The pattern (W,) that a guess gets, looked up where it is a word of the list."""
        return self.patterns[self.index[guess]] if guess in self.index else self.patterns_of(guess)


@cache
def word_tables(words: tuple[str, ...]) -> WordTables:
    """The tables of a list, shared by all environments that play with it."""
    return WordTables(words)


def pattern_number(marks: str) -> int:
    """The number of a pattern such as `byggb`."""
    return sum(MARKS.index(mark) * 3**place for place, mark in enumerate(marks))


def pattern_marks(number: int) -> str:
    """The inverse of `pattern_number`."""
    return "".join(MARKS[number // 3**place % 3] for place in range(NUM_LETTERS))


def board_text(guesses: Sequence[str], feedback: Sequence[str]) -> str:
    """The whole game as LMRL-Gym writes it: a line for each guess, and one for its marks."""
    turns = zip(guesses, feedback, strict=True)
    return OPENING + "".join(f"{' '.join(guess)}\n{' '.join(marks)}\n" for guess, marks in turns)


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
        "absent": " ".join(_ALPHABET[row] for row in np.flatnonzero(absent)).upper() or "-",
    }


def _squares(marked: np.ndarray) -> str:
    """The marked ones (26, 5) among all letters with their places, which are counted from 1."""
    squares = np.argwhere(marked).tolist()
    return " ".join(f"{_ALPHABET[letter]}{place + 1}" for letter, place in squares)


ALL_SQUARES = _squares(np.ones((len(_ALPHABET), NUM_LETTERS), dtype=bool))


def read_board(text: str) -> tuple[list[str], list[str]]:
    """Guesses and feedback of the game that a text ends with; the inverse of `board_text`.

    Raises:
        ValueError: there is no game in the text.
    """
    _, opening, board = text.rpartition(OPENING)
    lines = [line.replace(" ", "") for line in board.split("\n")[:-1]]
    if not opening or len(lines) % 2:
        raise ValueError(f"observation: expected a game of Wordle, got {text!r}")
    return lines[::2], lines[1::2]


class Wordle(gym.Env[np.ndarray, int]):
    """Guess the hidden word; LMRL-Gym's rules.

    ## Description
    Each guess is marked letter by letter: in its place, elsewhere in the word, or absent. Repeated
    letters are not counted. The hidden word is drawn anew at every turn, uniformly from the words
    that fit all marks so far.

    ## Action Space
    `Discrete(W)`: the guess, a word of the list by its number.

    ## Observation Space
    `MultiDiscrete([3] * 130 + [num_tries + 1])`: for each letter a to z and each of the five places
    0 not here, 1 possible, 2 here; then the tries that are used.

    ## Starting State
    Nothing is known. `reset(options={"state": {"guesses": ["shire"], "feedback": ["byggb"]}})`
    starts in the middle of a game; empty feedback is that of an invalid guess.

    ## Rewards
    0 for the hidden word, else −1; `invalid_reward` for text that is no word of the list.

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
    - `render_mode`: "ansi" or None.

    Raises `ValueError` or `DataError` if a word has other than five letters a-z.

    ## Version History
    - v0: first version.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        words: str | Sequence[str] | None = None,
        num_tries: int = 6,
        require_words: bool = True,
        invalid_reward: float = -1.0,
        letters_apart: bool = True,
        render_mode: str | None = None,
    ) -> None:
        if not isinstance(num_tries, int) or num_tries < 1:
            raise ValueError(f"num_tries: expected a number of at least 1, got {num_tries!r}")
        self.tables = word_tables(_words(words))
        self.num_tries = num_tries
        self.require_words = require_words
        self.invalid_reward = invalid_reward
        self.letters_apart = letters_apart
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(self.tables.words))
        places = len(_ALPHABET) * NUM_LETTERS
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

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Guesses a word of the list."""
        if not 0 <= action < len(self.tables.words):
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        guess = self.tables.words[action]
        self._learn(guess, self._mark(guess))
        return self._outcome(0.0 if self.solved else -1.0)

    def guess(self, text: str) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Guesses whatever was said: spaces do not matter, and what is no word uses up a try."""
        said = text.strip().replace(" ", "")
        if said in self.tables.index:
            return self.step(self.tables.index[said])
        if self.require_words or not _is_word(said):
            self._learn(_kept(said), "")
        else:
            self._learn(said, self._mark(said))
        return self._outcome(self.invalid_reward)

    def render(self) -> str:
        """The game as a player reads it."""
        return board_text(self.guesses, self.feedback)

    def _begin(self) -> None:
        self.guesses: list[str] = []
        self.feedback: list[str] = []
        self.fits = np.ones(len(self.tables.words), dtype=bool)
        self.knowledge = np.ones((len(_ALPHABET), NUM_LETTERS), dtype=np.int64)

    def _replay(self, state: Mapping[str, Sequence[str]]) -> None:
        try:
            turns = list(zip(state["guesses"], state["feedback"], strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"state: expected guesses and feedback, got {state}") from error
        for guess, marks in turns:
            if not _is_turn(guess, marks):
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
            letter = _ALPHABET.index(guess[place])
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


def _words(words: str | Sequence[str] | None) -> tuple[str, ...]:
    if words is None or isinstance(words, str):
        return read_words(_WORDS_FILE if words is None else words)
    if not isinstance(words, Sequence):
        raise ValueError(f"words: expected a file, or a list of words, got {words!r}")
    try:
        return _checked(words)
    except ValueError as error:
        raise ValueError(f"words: {error}") from error


def _checked(words: Sequence[str]) -> tuple[str, ...]:
    """The words, if each is of five letters and stands there once."""
    rows: dict[str, int] = {}
    for row, word in enumerate(words, start=1):
        if not _is_word(word):
            raise ValueError(f"row {row}: expected five letters a-z, got {word!r}")
        if rows.setdefault(word, row) != row:
            raise ValueError(f"row {row}: {word!r} stands in row {rows[word]} already")
    if not rows:
        raise ValueError("expected words, got none")
    return tuple(rows)


def _is_word(text: object) -> bool:
    return isinstance(text, str) and len(text) == NUM_LETTERS and set(text) <= set(_ALPHABET)


def _is_turn(guess: object, marks: object) -> bool:
    """Whether a game may hold them: a word and its marks, or what is kept of an invalid guess."""
    if marks == "":
        return isinstance(guess, str) and guess == _kept(guess)
    marked = isinstance(marks, str) and len(marks) == NUM_LETTERS and set(marks) <= set(MARKS)
    return marked and _is_word(guess)


def _letters(word: str) -> np.ndarray:
    return np.array([_ALPHABET.index(letter) for letter in word])


def _kept(said: str) -> str:
    """What the game shows of an invalid guess: printable, in one line, of bounded length."""
    letters = [letter for letter in said[:_LONGEST_NONSENSE] if not letter.isspace()]
    return "".join(
        letter if letter.isascii() and letter.isprintable() else "?" for letter in letters
    )
