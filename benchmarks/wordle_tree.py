"""Wordle played well: by the word that tells most, and by search, which finds the best play."""

import numpy as np

from lactchain.environments.language import LanguageEnv
from lactchain_extras.wordle.env import ConsistentWords
from lactchain_extras.wordle.words import SOLVED, WordTables


class InformedWords(ConsistentWords):
    """In Wordle, the fitting word that promises most information.

    That is the least expected logarithm of the number of words that will fit after it (the first of
    equally good ones).
    """

    name = "informed"

    def __init__(self, env: LanguageEnv) -> None:
        super().__init__(env)
        self._best: dict[bytes, int] = {}

    def choose(self, words: np.ndarray, tries: int, seed: int) -> int:
        """The word that tells most."""
        key = words.tobytes()
        if key not in self._best:
            patterns = self.tables.patterns[np.ix_(words, words)]
            counts = np.stack([np.bincount(row, minlength=SOLVED + 1) for row in patterns])
            remaining = (counts * np.log(np.maximum(counts, 1))).sum(axis=1)
            self._best[key] = int(words[remaining.argmin()])
        return self._best[key]


class BestWords(ConsistentWords):
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


class GameTree:
    """What the best play is worth, for each set of words that may fit.

    Costs are numbers of wrong guesses, summed over the words that fit, each hidden in turn. Guesses
    are of the list, whether they fit or not. What was found is remembered.

    A guess that parts n words into k classes costs 2n − k at least, and one less where it is one of
    the n: it is wrong for the others, and so is the next one for all but one of each class.
    """

    def __init__(self, tables: WordTables) -> None:
        self._patterns = tables.patterns
        self._known: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._bounds: dict[bytes, int] = {}

    def best(self, words: np.ndarray, tries: int) -> tuple[int, int]:
        """The least cost, and the guess that it takes.

        Args:
            words: numbers (n,) of those that fit, n at least 1, in ascending order.
            tries: guesses that are left, at least 1.
        """
        tries = min(tries, len(words))  # a guess that is worth it leaves fewer words than before
        key = words.tobytes(), tries
        if key not in self._known:
            self._known[key] = self._search(words, tries)
        return self._known[key]

    def _search(self, words: np.ndarray, tries: int) -> tuple[int, int]:
        """Branch and bound; guesses that may be the best come first."""
        if tries == 1:
            return len(words) - 1, int(words[0])
        bounds = self._least_costs(words)
        best, guess = np.inf, -1
        for candidate in np.argsort(bounds, kind="stable"):
            if bounds[candidate] >= best:
                break
            cost = self._cost(int(candidate), words, tries, best)
            if cost < best:
                best, guess = cost, int(candidate)
        return int(best), guess

    def _cost(self, guess: int, words: np.ndarray, tries: int, limit: float) -> int:
        """What a guess costs with the best play behind it; or a bound, at least the limit."""
        marks = self._patterns[guess, words]
        parts = [words[marks == mark] for mark in np.unique(marks) if mark != SOLVED]
        left = sum(map(len, parts))
        least = [len(part) - 1 for part in parts]
        for refined in (self._bound, lambda part: self.best(part, tries - 1)[0]):
            for number, part in enumerate(parts):
                if left + sum(least) >= limit:
                    break
                least[number] = refined(part)
        return left + sum(least)

    def _bound(self, words: np.ndarray) -> int:
        """What the best guess costs at least."""
        key = words.tobytes()
        if key not in self._bounds:
            self._bounds[key] = int(self._least_costs(words).min())
        return self._bounds[key]

    def _least_costs(self, words: np.ndarray) -> np.ndarray:
        """What each guess (W,) costs at least."""
        marks = np.sort(self._patterns[:, words], axis=1)
        num_classes = 1 + (marks[:, 1:] != marks[:, :-1]).sum(axis=1)
        fits = marks[:, -1] == SOLVED
        return 2 * len(words) - num_classes - fits
