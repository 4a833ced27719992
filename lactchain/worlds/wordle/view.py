"""Wordle in LMRL-Gym's words, and what else may be asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain.environments.views import State, TextView, reset_into
from lactchain.worlds.wordle.env import Wordle
from lactchain.worlds.wordle.picture import BoardPicture
from lactchain.worlds.wordle.policies import FittingWords
from lactchain.worlds.wordle.words import ALPHABET, NUM_LETTERS

CLUES_TEMPLATE = "{tries_left} tries\nabsent {absent}\nelsewhere {elsewhere}\nknown {known}\n"


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
        success=_solved,
        spelling=_letters_apart if world.letters_apart else _letters_together,
        step_takes_text=True,
        max_chains=world.num_tries,
        rare_words=f" {every_square} {every_square.upper()}",
        policies={"consistent": FittingWords, "informed": partial(FittingWords, informed=True)},
        picture=BoardPicture(),
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
    return {"board": game.render(), "tries_left": tries_left} | clues(game.knowledge)


def _state(env: gym.Env) -> State:
    return env.unwrapped.state


def _states(env: gym.Env) -> list[State]:
    return [{"guesses": [], "feedback": []}]


def _solved(env: gym.Env) -> bool:
    return env.unwrapped.solved


def _letters_together(said: str) -> str:
    return said.strip().replace(" ", "")


def _letters_apart(said: str) -> str:
    return " ".join(_letters_together(said))
