"""What simple policies earn in the maze, exactly: the floors that a learned one must pass.

Returns are undiscounted, and end where the rules end an episode.
"""

from __future__ import annotations

import numpy as np

from lactchain.worlds.maze.tables import MazeTables


def uniform_moves(tables: MazeTables) -> np.ndarray:
    """The policy (S, 4) that draws any move."""
    return np.full(tables.bumped.shape, 1 / tables.bumped.shape[1])


def open_moves(tables: MazeTables) -> np.ndarray:
    """The policy (S, 4) that draws any move that no wall stops."""
    return ~tables.bumped / (~tables.bumped).sum(axis=1, keepdims=True)


def maze_returns(tables: MazeTables, policy: np.ndarray, max_moves: int = 100) -> np.ndarray:
    """Expected return (N,) from each cell but the goal, of a policy (S, 4) of legal moves.

    V_0 = −1, the move that is not played any more; V_k(s) = Σ_a π(a|s) (r(s, a) + V_{k−1}(s')).
    """
    values = np.where(tables.terminal, 0.0, -1.0)
    for _ in range(max_moves):
        outcomes = tables.rewards + values[tables.next_state]
        values = np.where(tables.terminal, 0.0, (policy * outcomes).sum(axis=1))
    return values[tables.model.non_terminal]
