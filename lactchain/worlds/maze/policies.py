"""The scripted policy of the maze."""

import numpy as np

from lactchain.environments.language import LanguageEnv
from lactchain.environments.scripted import RowPolicy
from lactchain.worlds.maze.env import Maze
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
