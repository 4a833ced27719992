"""The scripted policies of Wordle."""

import numpy as np

from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import RowPolicy
from lactchain_extras.wordle.env import Wordle
from lactchain_extras.wordle.search import GameTree
from lactchain_extras.wordle.words import SOLVED, read_board


class WordPolicy(RowPolicy):
    """A policy of Wordle; a subclass says which word comes next, in `choose`.

    Args:
        env: the game; its list of words is used.

    Raises:
        ValueError: the environment is not Wordle.
    """

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
        """The number of the next word.

        Args:
            words: numbers (n,) of those that fit all feedback.
            tries: guesses that are left.
            seed: of this choice.
        """
        raise NotImplementedError


class ConsistentWords(WordPolicy):
    """In Wordle, a random word among those that fit all feedback.

    Args:
        env: see `WordPolicy`.
        informed: whether it is the word that promises most information instead: the least expected
            logarithm of the number of words that will fit after it (the first of equally good
            ones).
    """

    def __init__(self, env: LanguageEnv, informed: bool = False) -> None:
        super().__init__(env)
        self.name = "informed" if informed else "consistent"
        self.informed = informed
        self._best: dict[bytes, int] = {}

    def choose(self, words: np.ndarray, tries: int, seed: int) -> int:
        """A word that fits."""
        if not self.informed:
            return int(np.random.default_rng(seed).choice(words))
        key = words.tobytes()
        if key not in self._best:
            self._best[key] = self._most_informative(words)
        return self._best[key]

    def _most_informative(self, words: np.ndarray) -> int:
        patterns = self.tables.patterns[np.ix_(words, words)]
        counts = np.stack([np.bincount(row, minlength=SOLVED + 1) for row in patterns])
        remaining = (counts * np.log(np.maximum(counts, 1))).sum(axis=1)
        return int(words[remaining.argmin()])


class BestWords(WordPolicy):
    """In Wordle, the word of the list, fitting or not, with which the best play goes on.

    The search of its first move in an empty game is the search of the whole game.
    """

    name = "lookahead"

    def __init__(self, env: LanguageEnv) -> None:
        super().__init__(env)
        self._tree = GameTree(self.tables)

    def choose(self, words: np.ndarray, tries: int, seed: int) -> int:
        """The best word."""
        return self._tree.best(words, tries)[1]
