"""Lists of five-letter words, how they mark each other, and the board of a game.

What is known of the hidden word is the set of words that fit all feedback so far. In LMRL-Gym it is
written as knowledge of each letter in each place; both say the same, and a test holds it.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.errors import DataError

NUM_LETTERS = 5
MARKS = "byg"  # absent, elsewhere, in its place
TILES = {"b": "97;100", "y": "30;43", "g": "30;42"}
"""Colours of the marks in a terminal: letter and ground, as escape sequences number them."""
SOLVED = 3**NUM_LETTERS - 1  # the pattern of five g
OPENING = "Wordle:\n"
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_PLACE_VALUES = 3 ** np.arange(NUM_LETTERS)
_WORDS_FILE = Path(__file__).with_name("five_letter_words.txt")
_LONGEST_NONSENSE = 200  # letters of an invalid guess that are kept


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
        self._holds = np.zeros((len(words), len(ALPHABET)), dtype=bool)
        np.put_along_axis(self._holds, self.letters, True, axis=1)

    def __reduce__(self) -> tuple[Any, ...]:
        return word_tables, (self.words,)  # shared again where it is unpickled

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


def coloured_row(guess: str, marks: str) -> str:
    """A guess as tiles for a terminal: green, yellow, grey; one that was invalid struck through."""
    if not marks:
        return f"\x1b[9m{guess}\x1b[0m"
    tiles = zip(guess.upper(), marks, strict=True)
    return "".join(f"\x1b[1;{TILES[mark]}m {letter} \x1b[0m" for letter, mark in tiles)


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


def word_list(words: str | Sequence[str] | None) -> tuple[str, ...]:
    """The words of a file, one a line, or of a list; None: those that are shipped.

    Raises:
        DataError: there is no such file, or its words are not of five letters a-z, each once.
        ValueError: those of the list are not.
    """
    if words is None or isinstance(words, str):
        path = _WORDS_FILE if words is None else Path(words)
        try:
            return _checked(path.read_text(encoding="utf-8").splitlines())
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: {error}") from error
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
        if not is_word(word):
            raise ValueError(f"row {row}: expected five letters a-z, got {word!r}")
        if rows.setdefault(word, row) != row:
            raise ValueError(f"row {row}: {word!r} stands in row {rows[word]} already")
    if not rows:
        raise ValueError("expected words, got none")
    return tuple(rows)


def is_word(text: object) -> bool:
    """Whether it is five letters a-z."""
    return isinstance(text, str) and len(text) == NUM_LETTERS and set(text) <= set(ALPHABET)


def is_turn(guess: object, marks: object) -> bool:
    """Whether a game may hold them: a word and its marks, or what is kept of an invalid guess."""
    if marks == "":
        return isinstance(guess, str) and guess == kept(guess)
    marked = isinstance(marks, str) and len(marks) == NUM_LETTERS and set(marks) <= set(MARKS)
    return marked and is_word(guess)


def _letters(word: str) -> np.ndarray:
    return np.array([ALPHABET.index(letter) for letter in word])


def kept(guess: str) -> str:
    """What the game shows of an invalid guess: printable, in one line, of bounded length."""
    letters = (letter for letter in guess[:_LONGEST_NONSENSE] if not letter.isspace())
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in letters)
