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
import torch
from transformers import AutoModelForSequenceClassification

from lactchain.config.settings import ModelConfig
from lactchain.data.chain_values import expected_worth
from lactchain.data.episodes import Episode
from lactchain.data.evaluations import StateValues, ranks
from lactchain.data.exact_values import ExactPolicy, critic_against_exact, exact_policy
from lactchain.data.intervals import error_sums, r2, resampled_interval
from lactchain.data.rollouts import Rollouts
from lactchain.environments.chance import play_chains
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, tabular_model
from lactchain.errors import DataError, NonFiniteError
from lactchain.functional.random_streams import derive_seed
from lactchain.inspection.run_view import load_critic
from lactchain.models.loading import load_base, load_shape, load_tokenizer
from lactchain.models.weights import resolve_weights
from lactchain.storage.files import read_json
from lactchain.types import Critic, Discount, Policy

REWARD = "reward:"
MARGINS = 4
"""Parts into which pairs of candidates are cut by how much better one is, each of as many pairs."""
AT_ONCE = 2_000
ALIKE = 1e-9
"""What two chains may differ by and be worth the same."""


@dataclass(frozen=True)
class Numbers:
    """A `Critic` of numbers that somebody else has come to, one for each text."""

    known: Mapping[str, float]
    gamma: float
    discount_per: str = "action"
    mode: str = "value"

    def values(self, observations: Sequence[str], actions: Sequence[str] | None = None) -> Any:
        """The numbers (B,) of B texts."""
        return np.array([self.known[text] for text in observations])


def read_numbers(path: Path, env: LanguageEnv, gamma: float) -> Numbers:
    """A JSON file of `{"values": [...]}`, S numbers in the order of the states in RUN/states.json.

    Raises:
        DataError: it holds something else.
    """
    content, states = read_json(path).get("values"), env.view_states()
    is_list = isinstance(content, list) and len(content) == len(states)
    if not is_list or not all(type(n) in (int, float) and abs(n) < 1e300 for n in content):
        raise DataError(f"{path}: expected values: a list of {len(states)} numbers")
    texts = (env.texts(state) for state in states)
    numbers = zip(texts, content, strict=True)
    return Numbers({text: float(n) for alike, n in numbers for text in alike}, gamma)


class RewardModel:
    """A `Critic` that is a model of transformers with one label, such as TRL's reward models."""

    mode, discount_per = "value", "action"

    def __init__(self, model: str, gamma: float) -> None:
        if (Path(model) / "critic_config.json").is_file():
            raise DataError(f"{model}: expected a reward model, got a critic; leave reward: out")
        self.gamma, folder = gamma, resolve_weights(model)
        if (labels := load_shape(folder).num_labels) != 1:
            raise DataError(f"{folder}: expected a model with one label, got {labels}")
        self._tokenizer = load_tokenizer(folder, padding_side="right")
        self._model = load_base(AutoModelForSequenceClassification, folder, ModelConfig(model))
        # A critic that was exported so has no bias in its head.
        self._offset = getattr(self._model.config, "value_offset", 0.0)
        if type(self._offset) not in (int, float):
            raise DataError(f"{folder}/config.json: value_offset: expected a number")

    def values(self, observations: Sequence[str], actions: Sequence[str] | None = None) -> Any:
        """Its scores (B,) of B texts, one by one: padding would need a token for it."""
        with torch.inference_mode():
            rows = (self._tokenizer(text, return_tensors="pt") for text in observations)
            rows = (row.to(self._model.device) for row in rows)
            found = np.array([self._model(**row).logits.item() for row in rows]) + self._offset
        if not np.isfinite(found).all():
            raise NonFiniteError("reward: the model computes NaN or infinities; copy it again")
        return found


def open_critic(name: str, env: LanguageEnv, gamma: float) -> Critic:
    """What a name of `JudgeConfig.critics` stands for; `DataError` where there is none."""
    if name.startswith(REWARD):
        return RewardModel(name.removeprefix(REWARD), gamma)
    if name.endswith(".json"):
        return read_numbers(Path(name), env, gamma)
    return load_critic(name)


# --- yardsticks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Yardstick:
    """Exact values of a policy's S states, and of B candidates that it would give in them.

    Attributes:
        rows, columns: (B,) each candidate's state, and its number among the policy's chains; those
            of a state differ.
    """

    env: LanguageEnv
    policy: ExactPolicy
    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, actor: Any, env: LanguageEnv, folder: Path, count: int, seed: int) -> Self:
        """Draws `count` candidates in each state; those that are equal count once."""
        policy = exact_policy(actor, env, folder)
        shares = policy.probabilities / policy.probabilities.sum(axis=1, keepdims=True)
        draws = np.random.default_rng(seed).random((len(shares), count))
        both = zip(shares, draws, strict=True)
        drawn = [np.unique(np.searchsorted(share.cumsum(), draw)) for share, draw in both]
        rows = np.repeat(np.arange(len(drawn)), [len(columns) for columns in drawn])
        return cls(env, policy, rows, np.minimum(np.concatenate(drawn), len(policy.chains) - 1))

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

    def against(self, critic: Critic) -> tuple[StateValues, np.ndarray, np.ndarray]:
        """V of the states beside V^π; and of the candidates the critic's scores (B,) and Q^π (B,).

        A score is r + γ^k V(next state), expected where there are dice; of a critic of chains it is
        its Q, and V is the mean over a state's candidates.
        """
        discount = Discount(critic.gamma, critic.discount_per)
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
            means = np.bincount(self.rows, scores) / np.bincount(self.rows)
            known = dict(zip(self.texts, means, strict=True))
            numbers = Numbers(known, critic.gamma, critic.discount_per)
            values = critic_against_exact(numbers, self.policy, self.env)
        return values, np.asarray(scores, float), self._exact(np.array(values.exact), discount)

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

    `r2`, `rmse` and `slope` (of exact values on its own; 1 is calibrated) and `rho` (Spearman) over
    states; `rho_within` the mean over states of Spearman's ρ over their candidates; `pairs_right`
    the share of two candidates of a state that it puts in their order, a tie being half; and
    `by_margin` that share by how much better one of them is.
    """
    values, scores, exact = yardstick.against(critic)
    found, true = np.array(values.critic), np.array(values.exact)
    x, y = ranks(found), ranks(true)
    moments = np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)
    within = _within(yardstick.rows, scores, exact)
    margins, right, units = _pairs(yardstick.rows, scores, exact)
    in_states = np.stack([np.bincount(units, right), np.bincount(units)], axis=1)
    return {
        "num_states": len(true),
        "num_candidates": len(exact),
        "num_pairs": len(right),
        "r2": values.r2,
        "r2_interval": resampled_interval(error_sums(found, true), r2),
        "rmse": values.rmse,
        "slope": float(np.cov(found, true)[0, 1] / found.var(ddof=1)) if found.var() else np.nan,
        "rho": values.rho,
        "rho_interval": resampled_interval(moments, _correlation),
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
    starts: Sequence[State],
    num_replays: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Figures of critics in worlds without an exact model, by so many replays of each start.

    V of a critic of chains is its mean Q of as many chains as there are replays, drawn anew.
    A mean of R plays has the variance σ²/R beside that of the states. It is taken off what `r2`
    compares, and `rho` is divided by the root of the share that is left (Spearman 1904, "The proof
    and measurement of association between two things"), so that both are of values without luck.
    What comes after a time limit counts nothing.
    """
    episodes = [
        Episode(derive_seed(seed, "replay", n, k) % 2**31, state)
        for n, state in enumerate(starts)
        for k in range(num_replays)
    ]
    played = rollouts.play(policy, episodes)
    texts = [played[n * num_replays].observations[0] for n in range(len(starts))]

    @cache
    def chains(k: int) -> list[str]:
        seeds = [derive_seed(seed, "drawn", n, k) % 2**31 for n in range(len(texts))]
        return [action.text for action in policy.act(texts, seeds)]

    def values(critic: Critic) -> np.ndarray:
        if critic.mode == "value":
            return critic.values(texts)
        return np.mean([critic.values(texts, chains(k)) for k in range(num_replays)], axis=0)

    figures = {}
    for name, critic in critics.items():
        returns = np.array([t.returns(critic.gamma, critic.discount_per)[0] for t in played])
        figures[name] = without_luck(values(critic), returns.reshape(len(starts), -1))
    return figures


def without_luck(found: np.ndarray, returns: np.ndarray) -> dict[str, Any]:
    """Figures of values (S,) beside returns (S, R) of plays; NaN where luck explains them all."""
    means = returns.mean(axis=1)
    noise = float(returns.var(axis=1, ddof=1).mean() / returns.shape[1])
    variance = float(means.var(ddof=1)) - noise
    error = float(np.square(found - means).mean()) - noise
    share = variance / (variance + noise) if variance > 0 else np.nan
    rho = StateValues(({},) * len(means), tuple(found), tuple(means), 1.0).rho
    return {
        "num_states": len(means),
        "num_replays": returns.shape[1],
        "share_not_luck": share,
        "r2": 1 - error / variance if variance > 0 else np.nan,
        "rho": float(np.clip(rho / np.sqrt(share), -1, 1)) if variance > 0 else np.nan,
    }


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
