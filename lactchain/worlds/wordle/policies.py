"""The scripted policies of Wordle."""

import numpy as np

from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import RowPolicy
from lactchain.worlds.wordle.env import Wordle
from lactchain.worlds.wordle.words import SOLVED, read_board


class ConsistentWords(RowPolicy):
    """In Wordle, a random word among those that fit all feedback.

    Args:
        env: the game; its list of words is used.
        informed: whether it is the word that promises most information instead: the least expected
            logarithm of the number of words that will fit after it (the first of equally good
            ones).

    Raises:
        ValueError: the environment is not Wordle.
    """

    def __init__(self, env: LanguageEnv, informed: bool = False) -> None:
        if not isinstance(env.env.unwrapped, Wordle):
            raise ValueError(f"world: expected Wordle, got {env.env.unwrapped}")
        self.name = "informed" if informed else "consistent"
        self.grammar = env.grammar
        self.informed = informed
        self._tables = env.env.unwrapped.tables
        self._best: dict[bytes, int] = {}

    def complete(self, text: str, seed: int) -> str:
        """A word that fits the game so far."""
        fits = self._tables.fitting(*read_board(text))
        if not self.informed:
            word = int(np.random.default_rng(seed).choice(np.flatnonzero(fits)))
        elif (key := fits.tobytes()) in self._best:
            word = self._best[key]
        else:
            word = self._best[key] = self._most_informative(np.flatnonzero(fits))
        return self.grammar.render([word])

    def _most_informative(self, words: np.ndarray) -> int:
        patterns = self._tables.patterns[np.ix_(words, words)]
        counts = np.stack([np.bincount(row, minlength=SOLVED + 1) for row in patterns])
        remaining = (counts * np.log(np.maximum(counts, 1))).sum(axis=1)
        return int(words[remaining.argmin()])
