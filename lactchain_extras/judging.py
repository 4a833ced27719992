"""How well a critic's numbers stand for what the states of a policy are worth, and its chains.

The yardstick is the policy's own: exact V^π and Q^π where a model of the world is known, and else
means over replays, whose luck is taken off the figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from lactchain.data.chain_values import expected_worth
from lactchain.data.episodes import Episode, RecordedText
from lactchain.data.evaluations import StateValues, ranks
from lactchain.data.exact_values import ExactPolicy, critic_against_exact, exact_policy
from lactchain.data.intervals import error_sums, r2, resampled_interval
from lactchain.data.rollouts import Rollouts
from lactchain.environments.chance import play_chains
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, tabular_model
from lactchain.functional.random_streams import derive_seed
from lactchain.types import Critic, Discount, Policy, ask
from lactchain_extras.foreign_critics import Numbers

MARGINS = 4
"""Parts into which pairs of candidates are cut by how much better one is, each of as many pairs."""
AT_ONCE = 2_000
ALIKE = 1e-9
"""What two chains may differ by and be worth the same."""


@dataclass(frozen=True)
class Yardstick:
    """Exact values of a policy's S states, and of B candidates that it would give in them.

    Attributes:
        rows, columns: (B,) each candidate's state, and its number among the policy's chains; those
            of a state differ.
        draws: (B,) how often each was drawn.
    """

    env: LanguageEnv
    policy: ExactPolicy
    rows: np.ndarray
    columns: np.ndarray
    draws: np.ndarray

    @classmethod
    def of(cls, actor: Any, env: LanguageEnv, folder: Path, count: int, seed: int) -> Self:
        """Draws `count` candidates in each state; those that are equal count once."""
        policy = exact_policy(actor, env, folder)
        shares = policy.probabilities / policy.probabilities.sum(axis=1, keepdims=True)
        numbers = np.random.default_rng(seed).random((len(shares), count))
        last = len(policy.chains) - 1
        drawn = [
            np.unique(np.minimum(np.searchsorted(share.cumsum(), row), last), return_counts=True)
            for share, row in zip(shares, numbers, strict=True)
        ]
        rows = np.repeat(np.arange(len(drawn)), [len(columns) for columns, _ in drawn])
        return cls(env, policy, rows, *map(np.concatenate, zip(*drawn, strict=True)))

    @cached_property
    def states(self) -> list[State]:
        """The S states."""
        return self.env.view_states()

    @cached_property
    def texts(self) -> list[str]:
        """What the S states read like."""
        return [self.env.texts(state)[0] for state in self.states]

    @cached_property
    def completions(self) -> list[str]:
        """What the policy's chains read like."""
        parse = self.env.extractor.parse
        known = {tuple(parse(text).actions): text for text in self.env.grammar.completions()}
        return [known[tuple(chain[chain >= 0].tolist())] for chain in self.policy.chains]

    def against(self, critic: Critic) -> tuple[StateValues, float, np.ndarray, np.ndarray]:
        """V of the states beside V^π, and its luck; of the candidates scores (B,) and Q^π (B,).

        A score is r + γ^k V(next state), expected where there are dice. Of a critic of chains it is
        its Q; V is the mean over what was drawn in a state, and its luck the variance of that mean.
        """
        discount, luck = Discount(critic.gamma, critic.discount_per), 0.0
        if critic.mode == "value":
            values = critic_against_exact(critic, self.policy, self.env)
            scores = expected_worth(
                self.env,
                [self.states[row] for row in self.rows],
                [chain[chain >= 0].tolist() for chain in self.policy.chains[self.columns]],
                critic.values,
                discount,
            )[:, 1]
        else:
            asked = [self.texts[row] for row in self.rows]
            scores = critic.values(asked, [self.completions[column] for column in self.columns])
            texts, of_text = np.unique(self.texts, return_inverse=True)
            at, count = of_text[self.rows], np.bincount(of_text[self.rows], self.draws)
            means = np.bincount(at, self.draws * scores) / count
            around = np.bincount(at, self.draws * np.square(scores - means[at])) / count
            luck = _luck(around[of_text], count[of_text])
            known = dict(zip(texts.tolist(), means, strict=True))
            numbers = Numbers(known, critic.gamma, critic.discount_per)
            values = critic_against_exact(numbers, self.policy, self.env)
        true = self._exact(np.array(values.exact), discount)
        return values, luck, np.asarray(scores, float), true

    def _exact(self, values: np.ndarray, discount: Discount) -> np.ndarray:
        """Q^π (B,) of the candidates, by V^π (S,)."""
        model = tabular_model(self.env.env, self.env.view)
        worth = np.zeros(len(model.terminal))
        worth[model.non_terminal] = values
        starts, chains = model.non_terminal[self.rows], self.policy.chains[self.columns]
        found = []
        for first in range(0, len(starts), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            reach, rewards = play_chains(model, starts[part], chains[part], discount.inside)
            after = discount.after((chains[part] >= 0).sum(axis=1))
            found.append(rewards - self.env.chain_cost + after * (reach @ worth))
        return np.concatenate(found)


def judge(critic: Critic, yardstick: Yardstick) -> dict[str, Any]:
    """Figures of a critic, with intervals of 95 % over states.

    `r2`, `rmse`, `slope` (of exact values on its own; 1 is calibrated) and `rho` (Spearman) over
    states, less the luck of draws of a critic of chains; `rho_within` the mean over states of
    Spearman's ρ over their candidates; `pairs_right` the share of two candidates of a state that it
    puts in their order, a tie being half; and `by_margin` that share by how much better one is.
    """
    values, luck, scores, exact = yardstick.against(critic)
    found, true = np.array(values.critic), np.array(values.exact)
    x, y = ranks(found), ranks(true)
    share, explained = _share(found, luck), luck / true.var() if true.var() else 0.0
    slope = np.cov(found, true)[0, 1] / found.var(ddof=1) / share if share > 0 else np.nan
    sums = error_sums(found, true)
    moments = np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)
    within = _within(yardstick.rows, scores, exact)
    margins, right, units = _pairs(yardstick.rows, scores, exact)
    in_states = np.stack([np.bincount(units, right), np.bincount(units)], axis=1)
    return {
        "num_states": len(true),
        "num_candidates": len(exact),
        "num_pairs": len(right),
        "r2": values.r2 + explained,
        "r2_interval": [bound + explained for bound in resampled_interval(sums, r2)],
        "rmse": float(np.sqrt(np.maximum(0.0, values.rmse**2 - luck))),
        "slope": float(slope),
        "rho": _without(values.rho, share),
        "rho_interval": [_without(rho, share) for rho in resampled_interval(moments, _correlation)],
        "rho_within": _mean(within[:, 0]),
        "rho_within_interval": _share_interval(within),
        "pairs_right": _mean(right),
        "pairs_right_interval": _share_interval(in_states[in_states[:, 1] > 0]),
        "by_margin": _by_margin(margins, right),
    }


# --- replays --------------------------------------------------------------------------------------


def judge_by_replays(
    critics: Mapping[str, Critic],
    policy: Policy,
    rollouts: Rollouts,
    starts: Sequence[State | RecordedText],
    num_replays: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Figures of critics in worlds without an exact model, by so many replays of each start.

    A text of recorded episodes is gone on from, in one of its states.

    A mean of R plays has the variance σ²/R beside that of the states. It is taken off what `r2`
    compares, and `rho` is divided by the root of the share that is left (Spearman 1904, "The proof
    and measurement of association between two things"), so that both are of values without luck.
    V of a critic of chains is its mean Q of R chains that are drawn anew, whose luck is taken off
    in the same way. What comes after a time limit counts nothing.
    """
    episodes = [
        state.drawn(key) if isinstance(state, RecordedText) else Episode(key, state)
        for n, state in enumerate(starts)
        for key in (derive_seed(seed, "replay", n, k) % 2**31 for k in range(num_replays))
    ]
    played = rollouts.play(policy, episodes)
    texts = [played[n * num_replays].observations[0] for n in range(len(starts))]

    @cache
    def chains(k: int) -> list[str]:
        seeds = [derive_seed(seed, "drawn", n, k) % 2**31 for n in range(len(texts))]
        return [action.text for action in ask(policy, texts, seeds, rollouts.num_envs)]

    def values(critic: Critic) -> np.ndarray:
        if critic.mode == "value":
            return np.asarray(critic.values(texts))[:, None]
        return np.stack([critic.values(texts, chains(k)) for k in range(num_replays)], axis=1)

    figures = {}
    for name, critic in critics.items():
        returns = np.array([t.returns(critic.gamma, critic.discount_per)[0] for t in played])
        figures[name] = without_luck(values(critic), returns.reshape(len(starts), -1))
    return figures


def without_luck(found: np.ndarray, returns: np.ndarray) -> dict[str, Any]:
    """Figures of values (S, D), of D draws, beside returns (S, R); NaN where all is luck."""
    values, means = found.mean(axis=1), returns.mean(axis=1)
    luck = _luck(found.var(axis=1), found.shape[1]) if found.shape[1] > 1 else 0.0
    noise = _luck(returns.var(axis=1), returns.shape[1])
    share = _share(means, noise)
    variance = float(means.var(ddof=1)) - noise if share > 0 else np.nan
    error = float(np.square(values - means).mean()) - noise - luck
    rho = StateValues(({},) * len(means), tuple(values), tuple(means), 1.0).rho
    return {
        "num_states": len(means),
        "num_replays": returns.shape[1],
        "share_not_luck": share,
        "r2": 1 - error / variance,
        "rho": _without(rho, share * _share(values, luck)),
    }


def _luck(variances: np.ndarray, counts: Any) -> float:
    """Mean variance of S means of so many draws, by those (S,) around them; NaN of single draws."""
    return float(np.mean(variances / (counts - 1))) if np.min(counts) > 1 else np.nan


def _share(means: np.ndarray, luck: float) -> float:
    """Share of the variance of S means that is not luck; NaN where nothing else is there."""
    variance, scale = float(means.var(ddof=1)), float(np.square(means).mean())
    return 1 - luck / variance if variance - luck > 1e-12 * scale else np.nan


def _without(rho: float, share: float) -> float:
    """A rank correlation, less the luck of one side or both."""
    return float(np.clip(rho / np.sqrt(share), -1, 1))


# --- statistics -----------------------------------------------------------------------------------


def _correlation(sums: np.ndarray) -> np.ndarray:
    count, x, y, xx, yy, xy = sums
    return (count * xy - x * y) / np.sqrt((count * xx - x * x) * (count * yy - y * y))


def _within(rows: np.ndarray, scores: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Spearman's ρ of each state whose candidates differ, and 1 (M, 2); 0 where scores do not."""
    found = []
    for row in np.unique(rows):
        x, y = (ranks(values[rows == row].round(9)) for values in (scores, exact))
        if np.ptp(y):
            found.append((float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) else 0.0, 1.0))
    return np.array(found).reshape(-1, 2)


def _pairs(
    rows: np.ndarray, scores: np.ndarray, exact: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of two candidates that differ: by how much, whether they are in order, and their state."""
    margins, right, units = [], [], []
    for row in np.unique(rows):
        here = np.flatnonzero(rows == row)
        first, second = np.triu_indices(len(here), 1)
        true = exact[here[first]] - exact[here[second]]
        found = scores[here[first]] - scores[here[second]]
        found[np.abs(found) < ALIKE] = 0.0
        differ = np.abs(true) > ALIKE
        margins.append(np.abs(true[differ]))
        right.append((1 + np.sign(true[differ]) * np.sign(found[differ])) / 2)
        units.append(np.full(differ.sum(), row))
    return np.concatenate(margins), np.concatenate(right), np.concatenate(units)


def _by_margin(margins: np.ndarray, right: np.ndarray) -> list[dict[str, float]]:
    order = np.argsort(margins, kind="stable")
    parts = [part for part in np.array_split(order, MARGINS) if len(part)]
    return [
        {
            "from": float(margins[part[0]]), "to": float(margins[part[-1]]),
            "pairs_right": _mean(right[part]), "num_pairs": len(part),
        }
        for part in parts
    ]  # fmt: skip


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _share_interval(sums: np.ndarray) -> tuple[float, float]:
    if not len(sums):
        return float("nan"), float("nan")
    return resampled_interval(sums, lambda totals: totals[0] / totals[1])
