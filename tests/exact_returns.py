"""What the best policy and simple ones earn, computed without playing."""

from functools import cache

import numpy as np

from lactchain_extras.maze import MazeTables
from lactchain_extras.wordle.words import SOLVED, WordTables


def uniform_moves(tables: MazeTables) -> np.ndarray:
    """The policy (S, 4) that draws any move."""
    return np.full(tables.bumped.shape, 1 / tables.bumped.shape[1])


def legal_moves(tables: MazeTables) -> np.ndarray:
    """The policy (S, 4) that draws any move that no wall stops."""
    return ~tables.bumped / (~tables.bumped).sum(axis=1, keepdims=True)


def maze_returns(tables: MazeTables, policy: np.ndarray, max_moves: int = 100) -> np.ndarray:
    """Expected return (N,), undiscounted, from each cell but the goal, of a policy (S, 4) of moves.

    V_0 = −1, the move that is not played any more; V_k(s) = Σ_a π(a|s) (r(s, a) + V_{k−1}(s')).
    """
    values = np.where(tables.terminal, 0.0, -1.0)
    for _ in range(max_moves):
        outcomes = tables.rewards + values[tables.next_state]
        values = np.where(tables.terminal, 0.0, (policy * outcomes).sum(axis=1))
    return values[tables.model.non_terminal]


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


def best_wordle_return(tables: WordTables, num_tries: int = 6) -> float:
    """Expected return of the best play, by trying every guess W of the list everywhere.

    J_t(words) = max_g n⁻¹ Σ_{h ≠ g} (J_{t−1}(words that fit after g is marked by h) − 1).
    """

    @cache
    def best(words: frozenset[int], tries: int) -> float:
        if not tries:
            return 0.0
        return max(expected(guess, words, tries) for guess in range(len(tables.words)))

    def expected(guess: int, words: frozenset[int], tries: int) -> float:
        marks = {hidden: tables.patterns[guess, hidden] for hidden in words}
        total = 0.0
        for hidden in words - {guess}:
            fitting = frozenset(other for other in words if marks[other] == marks[hidden])
            total += best(fitting, tries - 1) - 1
        return total / len(words)

    return best(frozenset(range(len(tables.words))), num_tries)
