"""What can be expected in a world with chance that has an exact model: of chains, of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lactchain.data.exact_values import can_enumerate
from lactchain.environments.chance import best_within, play_chains, with_bumps
from lactchain.environments.exact import TabularModel, pad_chains
from lactchain.environments.extractors import Chain
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, tabular_model
from lactchain.types import Policy

Values = Callable[[Sequence[str]], np.ndarray]
"""V (B,) of B texts."""


def chain_worth(
    env: LanguageEnv,
    states: Sequence[State],
    chains: Sequence[Sequence[int]],
    values: Values | None,
    gamma: float,
    discount_per: str,
) -> np.ndarray:
    """What B chains are expected to earn, each in a state of its own, and their scores: (B, 2).

    A score is E[r + γ^k V(next state)], discounted as `Trajectory.chain_rewards` says, V being that
    of the text that tells of the next state and of a bump; without `values` it is what is earned.
    """
    model = tabular_model(env.env, env.view)
    per_action, padded = discount_per == "action", pad_chains(chains)
    starts = model.non_terminal[[model.row(state) for state in states]]
    reach, rewards = play_chains(with_bumps(model), starts, padded, gamma if per_action else 1.0)
    earned = rewards - env.chain_cost
    if values is None:
        return np.stack([earned, earned], axis=1)
    terminal = np.tile(model.terminal, 2)
    reached = np.flatnonzero(reach.any(axis=0) & ~terminal)
    bumped, numbers = np.divmod(reached, len(model.terminal))
    told = [env.texts(model.states[n])[b] for n, b in zip(numbers, bumped, strict=True)]
    after = reach[:, reached] @ values(told) if told else 0.0
    discounts = gamma ** (padded >= 0).sum(axis=1) if per_action else gamma
    return np.stack([earned, earned + discounts * after], axis=1)


def expected_figures(policy: Policy, env: LanguageEnv) -> dict[str, float]:
    """Exact figures of the policy's episodes, means over the start states.

    `expected_success` and `expected_return` (undiscounted), of episodes of `env.max_chains`
    completions. `optimum_success` and `optimum_return`: the greatest with legal chains, each by a
    policy of its own. `of_optimum`: expected over optimum success. A time limit that counts actions
    is not in them.

    Nothing where there is no chance, or where it cannot be computed: without an exact model, with
    too many chains, with a history in the text, or with a rule of the world's own for text that is
    no chain.

    Args:
        policy: its completion to a text is always the same.
    """
    if not can_enumerate(env) or env.history != 1 or env.view.step_takes_text:
        return {}
    model = tabular_model(env.env, env.view)
    if model.deterministic:
        return {}
    rows = [model.row(state) for state in env.start_states()]
    success, returns = _expected(policy, env, model)
    limits = env.max_chains, env.grammar.max_chain_length, env.chain_cost
    best_success, best_returns = best_within(model, *limits)
    figures = {
        "expected_success": success,
        "expected_return": returns,
        "optimum_success": best_success,
        "optimum_return": best_returns,
    }
    means = {name: float(values[rows].mean()) for name, values in figures.items()}
    return means | {"of_optimum": _share(means["expected_success"], means["optimum_success"])}


def _expected(
    policy: Policy, env: LanguageEnv, model: TabularModel
) -> tuple[np.ndarray, np.ndarray]:
    """Chance of success (N,) and expected return (N,) of an episode from each state.

    What the policy reads is a state, and what came of the last completion: nothing to tell, a bump,
    or a refusal. So there are three rows of states, as in `LanguageEnv.texts`.
    """
    by_state = [env.texts(state) for state in model.non_terminal_states]
    texts = [text for row in zip(*by_state, strict=True) for text in row]
    distinct = list(dict.fromkeys(texts))
    said = dict(zip(distinct, policy.act(distinct, [0] * len(distinct)), strict=True))
    readings = [env.extractor.parse(said[text].text) for text in texts]
    legal = np.array([isinstance(reading, Chain) for reading in readings]).reshape(3, -1)
    chains = pad_chains([r.actions if isinstance(r, Chain) else () for r in readings])
    reach, rewards = play_chains(with_bumps(model), np.tile(model.non_terminal, 3), chains)
    gains = np.where(legal, rewards.reshape(legal.shape), env.invalid_penalty) - env.chain_cost

    def within(gains: np.ndarray | float, ended: np.ndarray) -> np.ndarray:
        """Sum (N,) of the gains (3, N), and of what it is worth (S,) where an episode ended."""
        values, after = np.zeros(legal.shape), np.tile(ended, (2, 1))
        for _ in range(env.max_chains):
            after[:, model.non_terminal] = values[:2]
            values = gains + np.where(
                legal, (reach @ after.ravel()).reshape(legal.shape), values[2]
            )
        return values[0]

    return within(0.0, model.goal.astype(float)), within(gains, np.zeros(len(model.goal)))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
