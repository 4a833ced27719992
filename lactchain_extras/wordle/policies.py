"""The scripted policies of Wordle."""

from abc import abstractmethod

import numpy as np

from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import RowPolicy
from lactchain_extras.wordle.env import Wordle
from lactchain_extras.wordle.words import read_board


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

    @abstractmethod
    def choose(self, words: np.ndarray, tries: int, seed: int) -> int:
        """The number of the next word.

        Args:
            words: numbers (n,) of those that fit all feedback.
            tries: guesses that are left.
            seed: of this choice.
        """


class ConsistentWords(WordPolicy):
    """In Wordle, a random word among those that fit all feedback."""

    name = "consistent"

    def choose(self, words: np.ndarray, tries: int, seed: int) -> int:
        """A word that fits."""
        return int(np.random.default_rng(seed).choice(words))
