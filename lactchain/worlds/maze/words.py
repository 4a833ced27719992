"""How LMRL-Gym tells the moves and the walls of a maze, and how that is read again."""

import numpy as np

ACTION_NAMES = ("move up", "move down", "move left", "move right")

_SIDES = (
    (3, "to your right", "R"),
    (2, "to your left", "L"),
    (0, "above you", "A"),
    (1, "below you", "B"),
)


def wall_letters(sides: np.ndarray) -> str:
    """The walls on the four sides, a letter each, `-` for none."""
    return " ".join(letter for action, _, letter in _SIDES if sides[action]) or "-"


def wall_sentence(sides: np.ndarray) -> str:
    """LMRL-Gym's words for the walls on the four sides, in its order."""
    walls = [name for action, name, _ in _SIDES if sides[action]]
    if not walls:
        return "There are no walls near you."
    if len(walls) == 1:
        return f"There is a wall {walls[0]}."
    return f"There are walls {', '.join(walls)}."


def read_legal_moves(text: str) -> list[int]:
    """The moves that no wall stops, by a text's last sentence on walls; `ValueError` if none."""
    _, found, walls = text.rpartition("There ")
    if not found:
        raise ValueError(f"observation: expected a sentence on walls, got {text!r}")
    return sorted(action for action, name, _ in _SIDES if name not in walls)
