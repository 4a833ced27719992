"""What chains are worth in a world that lists what may come of an action, and has no model."""

from collections.abc import Callable, Sequence

import numpy as np

from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State

Values = Callable[[Sequence[str]], np.ndarray]
"""V (B,) of B texts."""

Told = dict[tuple[str, bool], str]
"""The texts of states, behind a chain that left one as it was and behind others."""


def worth_by_outcomes(
    env: LanguageEnv,
    states: Sequence[State],
    chains: Sequence[Sequence[int]],
    values: Values | None,
    gamma: float,
    discount_per: str,
) -> np.ndarray:
    """What B chains are expected to earn, and their scores: (B, 2); see `chain_worth`.

    All that may come of a decision is gone through, and texts that read the same are valued once.
    """
    keys = [(str(state), tuple(chain)) for state, chain in zip(states, chains, strict=True)]
    decisions = dict(zip(keys, zip(states, chains, strict=True), strict=True))
    inside = gamma if discount_per == "action" else 1.0
    told: Told = {}
    ends = {key: _ends(env, *decision, inside, told) for key, decision in decisions.items()}
    texts = list(dict.fromkeys(told.values()))
    known = {} if values is None else dict(zip(texts, values(texts), strict=True))
    worth = {}
    for key, outcomes in ends.items():
        earned = sum(p * rewards for p, rewards, _ in outcomes) - env.chain_cost
        after = sum(p * known.get(text, 0.0) for p, _, text in outcomes)
        discount = gamma ** len(key[1]) if discount_per == "action" else gamma
        worth[key] = earned, earned + discount * after
    return np.array([worth[key] for key in keys])


def _ends(
    env: LanguageEnv, state: State, chain: Sequence[int], gamma: float, told: Told
) -> list[tuple[float, float, str | None]]:
    """All that may come of a chain: probability, rewards and text, none where it is over.

    Args:
        told: new texts are added to it.
    """
    paths: list[tuple[float, float, State | None, bool]] = [(1.0, 0.0, state, False)]
    for step, action in enumerate(chain):
        over, going = [path for path in paths if path[2] is None], []
        for probability, rewards, before, bumped in [path for path in paths if path[2] is not None]:
            env.view.set_state(env.env, before)
            for share, reward, after in env.view.outcomes(env.env, action):
                earned = rewards + gamma**step * reward
                going.append((probability * share, earned, after, bumped or after == before))
        paths = over + going
    return [(p, rewards, _text(env, after, bumped, told)) for p, rewards, after, bumped in paths]


def _text(env: LanguageEnv, state: State | None, bumped: bool, told: Told) -> str | None:
    if state is None:
        return None
    key = str(state), bumped
    if key not in told:
        told[key] = env.texts(state)[1] if bumped else env.reset(options={"state": state})[0]
    return told[key]
