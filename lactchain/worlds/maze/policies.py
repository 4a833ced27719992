"""Scripted policies of the maze, and what such policies earn: the floors of a learned one."""

from __future__ import annotations

import numpy as np

from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import RowPolicy
from lactchain.worlds.maze.env import Maze
from lactchain.worlds.maze.tables import MazeTables
from lactchain.worlds.maze.words import read_legal_moves


class LegalMoves(RowPolicy):
    """In a maze, a random move among those that no wall stops; reads only what the text says.

    Raises:
        ValueError: the environment is not a maze.
    """

    name = "legal"

    def __init__(self, env: LanguageEnv) -> None:
        if not isinstance(env.env.unwrapped, Maze):
            raise ValueError(f"world: expected a maze, got {env.env.unwrapped}")
        self.grammar = env.grammar

    def complete(self, text: str, seed: int) -> str:
        """A drawn move."""
        move = np.random.default_rng(seed).choice(read_legal_moves(text))
        return self.grammar.render([int(move)])


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
