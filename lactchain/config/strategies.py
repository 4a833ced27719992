"""The menu of strategies: instructions that stand before each state in a prompt."""

import difflib
from collections.abc import Sequence

STRATEGIES: dict[str, str] = {
    "none": "",
    "direct": (
        "Each move is one of: {actions}. Answer with a JSON list of at most {max_chain_length} "
        "moves that reach the goal, and nothing else."
    ),
    "founding": (
        "You are in grid world, propose a sequence of moves, each one of [{actions}], at most "
        "{max_chain_length} of them. Answer with a JSON list of moves and nothing after it."
    ),
    "explain": (
        "You are in a grid world and see your position, the way you face, and the goal. Propose "
        "the sequence of moves that brings you to the goal. Each move is one of: {actions}. Use at "
        'most {max_chain_length} moves. Answer with a JSON object and nothing after it: {"explain":'
        ' "one sentence on why", "moves": ["move", "move"]}'
    ),
    "code": (
        "Write the code that solves the task below. Answer with one fenced code block and nothing "
        "after it."
    ),
}
"""The menu. `{actions}` and `{max_chain_length}` are filled in; all other braces stay."""


def resolve_strategy(
    strategy: str, action_names: Sequence[str] = (), max_chain_length: int = 9
) -> str:
    """The text of a strategy of the menu, or of the user's own, with its placeholders filled in.

    Braces other than the two placeholders are left alone: a strategy may well show JSON.
    """
    text = STRATEGIES.get(strategy, strategy)
    text = text.replace("{actions}", ", ".join(f'"{name}"' for name in action_names))
    return text.replace("{max_chain_length}", str(max_chain_length))


def check_strategy(strategy: str) -> None:
    """Raises `ValueError` for a single word that is no name of the menu: it is misspelt."""
    if strategy in STRATEGIES or len(strategy.split()) != 1:
        return
    near = difflib.get_close_matches(strategy, STRATEGIES)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(
        f"strategy: expected one of {', '.join(STRATEGIES)}, or an instruction of several words, "
        f"got {strategy!r}{hint}"
    )
