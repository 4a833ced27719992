"""A scripted policy of the maze."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lactchain.types import Action, ChainGrammar
from lactchain.worlds.maze.words import ACTION_NAMES, open_moves


class OpenMoves:
    """In a maze, a random move among those that no wall stops; reads only what the text says.

    Raises:
        ValueError: the grammar is not of a maze.
    """

    name = "legal random"

    def __init__(self, grammar: ChainGrammar) -> None:
        if len(grammar.action_names) != len(ACTION_NAMES):
            raise ValueError(f"world: expected a maze, got one with {grammar.action_names}")
        self.grammar = grammar

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """Answers B observations; row b draws from `seeds[b]` alone.

        Raises:
            ValueError: a text does not tell the walls.
        """
        return [self._answer(*row) for row in zip(observations, seeds, strict=True)]

    def _answer(self, text: str, seed: int) -> Action:
        moves = open_moves(text)
        return Action(self.grammar.render([int(np.random.default_rng(seed).choice(moves))]))
