"""Wordle in LMRL-Gym's words, and in pictures as people know it."""

from collections.abc import Mapping
from functools import partial
from itertools import starmap
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain.environments.views import Outcome, State, TextView, reset_into
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain_extras.wordle.env import Wordle
from lactchain_extras.wordle.policies import BestWords, ConsistentWords
from lactchain_extras.wordle.words import ALPHABET, NUM_LETTERS, SOLVED, is_turn, pattern_marks

CLUES_TEMPLATE = "{tries_left} tries\nabsent {absent}\nelsewhere {elsewhere}\nknown {known}\n"
KINDS = {"g": "hit", "y": "near", "b": "miss"}
"""What a picture calls the marks of a letter: in the right place, elsewhere, absent."""

_GAME_STATE = {"guesses", "feedback"}


def wordle_view(world: Wordle) -> TextView:
    """`Wordle` in LMRL-Gym's words, the whole game in every observation.

    Fields: board (the game so far), tries_left, and what `clues` says of the letters (known,
    elsewhere, absent): `CLUES_TEMPLATE` shows these alone. The only state that it lists is the
    empty game. Spaces between the letters of a guess do not matter.
    """
    words = world.tables.words
    every_square = _squares(np.ones((len(ALPHABET), NUM_LETTERS), dtype=bool))
    return TextView(
        action_names=tuple(map(" ".join, words)) if world.letters_apart else words,
        template="{board}",
        describe=_describe,
        get_state=_state,
        set_state=reset_into,
        states=_states,
        outcomes=_outcomes if world.reward is None else None,
        success=_solved,
        spelling=_letters_apart if world.letters_apart else _letters_together,
        step_takes_text=True,
        max_chains=world.num_tries,
        brief="{tries_left} {absent} {elsewhere} {known}",
        rare_words=f" {every_square} {every_square.upper()}",
        policies={
            "consistent": ConsistentWords,
            "informed": partial(ConsistentWords, informed=True),
            "lookahead": BestWords,
        },
        competent="consistent",
        picture=Picture(NUM_LETTERS, world.num_tries, _scene),
    )


def clues(knowledge: np.ndarray) -> dict[str, str]:
    """What is known of the letters, in words; it says all that the marks say.

    Args:
        knowledge: (26, 5), as `Wordle` observes it.

    Returns:
        known: letters with their places, `E5 H2`; elsewhere: letters of the word with a place where
        each is not, `s1`; absent: letters that the word has not, as capitals. `-` where there are
        none.
    """
    absent = ~knowledge.any(axis=1)
    elsewhere = (knowledge == 0) & ~absent[:, None]
    return {
        "known": _squares(knowledge == 2).upper() or "-",
        "elsewhere": _squares(elsewhere) or "-",
        "absent": " ".join(ALPHABET[row] for row in np.flatnonzero(absent)).upper() or "-",
    }


def _squares(marked: np.ndarray) -> str:
    """The marked ones (26, 5) among all letters with their places, which are counted from 1."""
    squares = np.argwhere(marked).tolist()
    return " ".join(f"{ALPHABET[letter]}{place + 1}" for letter, place in squares)


def _describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, object]:
    game = env.unwrapped
    tries_left = game.num_tries - len(game.guesses)
    return {"board": game.board, "tries_left": tries_left} | clues(game.knowledge)


def _state(env: gym.Env) -> State:
    return env.unwrapped.state


def _states(env: gym.Env) -> list[State]:
    return [{"guesses": [], "feedback": []}]


def _outcomes(env: gym.Env, action: int) -> list[Outcome]:
    """The marks that a guess may get; the hidden word is any of those that fit."""
    game = env.unwrapped
    patterns, counts = np.unique(game.tables.patterns[action, game.fits], return_counts=True)
    guesses, last_try = [*game.guesses, game.tables.words[action]], game.num_tries - 1
    outcomes = []
    for pattern, share in zip(patterns.tolist(), counts / counts.sum(), strict=True):
        over = pattern == SOLVED or len(game.guesses) == last_try
        state = {"guesses": guesses, "feedback": [*game.feedback, pattern_marks(pattern)]}
        outcomes.append(Outcome(share, 0.0 if pattern == SOLVED else -1.0, None if over else state))
    return outcomes


def _solved(env: gym.Env) -> bool:
    return env.unwrapped.solved


def _letters_together(said: str) -> str:
    return said.strip().replace(" ", "")


def _letters_apart(said: str) -> str:
    return " ".join(_letters_together(said))


def _scene(state: State) -> Scene:
    """The guesses, their letters coloured; what was no guess struck through."""
    if not is_game(state):
        raise ValueError(f"state: expected a game, got {state}")
    turns = enumerate(zip(state["guesses"], state["feedback"], strict=False))
    return Scene(marks=tuple(mark for row, turn in turns for mark in _row(row, *turn)))


def is_game(state: object) -> bool:
    """Whether something is the state of a game."""
    if not isinstance(state, Mapping) or state.keys() != _GAME_STATE:
        return False
    return all(starmap(is_turn, zip(state["guesses"], state["feedback"], strict=False)))


def _row(row: int, guess: str, marks: str) -> list[Mark]:
    if not marks:
        return [Mark(0, row, "struck", guess or "(nothing)")]
    letters = zip(guess.upper(), marks, strict=True)
    return [Mark(x, row, KINDS[mark], letter) for x, (letter, mark) in enumerate(letters)]
