"""What guessing consistent words earns in Wordle, exactly: a floor for learned policies."""

from __future__ import annotations

from functools import cache

import numpy as np

from lactchain.worlds.wordle.words import SOLVED, WordTables


def wordle_return(tables: WordTables, num_tries: int = 6) -> float:
    """Expected return of guessing a random word among those that fit.

    With n words that fit and t tries left, all pairs of guess g and hidden word h being equally
    likely, J_t(words) = n⁻² Σ_g Σ_{h ≠ g} (J_{t−1}(words that fit after g is marked by h) − 1).
    """

    @cache
    def expected(words: tuple[int, ...], tries: int) -> float:
        count = len(words)
        if count == 1 or tries == 0:
            return 0.0
        if tries == 1:
            return (1 - count) / count
        total = 0.0
        for patterns in tables.patterns[np.ix_(words, words)].tolist():
            groups: dict[int, list[int]] = {}
            for word, pattern in zip(words, patterns, strict=True):
                groups.setdefault(pattern, []).append(word)
            groups.pop(SOLVED)
            for fitting in groups.values():
                later = expected(tuple(fitting), tries - 1) if len(fitting) > 1 else 0.0
                total += len(fitting) * (later - 1)
        return total / count**2

    return expected(tuple(range(len(tables.words))), num_tries)
