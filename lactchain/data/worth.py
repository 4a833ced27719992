"""What chains are worth: what they earn, and with V of the state after, r + γ^k V(next state).

Of a chain that was played, by that play; of a world with chance that is known, exactly: by its
model, or by the outcomes that its view lists. Otherwise means over plays tell it (`plays.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lactchain.data.episodes import RecordedText, hides, state_of
from lactchain.data.preferences import chain_advantages
from lactchain.data.rollouts import Rollouts
from lactchain.environments.chance import play_chains, with_bumps
from lactchain.environments.exact import pad_chains
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, tabular_model
from lactchain.types import Critic, Discount, Trajectory

Values = Callable[[Sequence[str]], np.ndarray]
"""V (B,) of B texts."""

Texts = dict[tuple[str, bool], str]
"""The texts of states, behind a chain that left one as it was and behind others."""


class ChainWorth:
    """What single decisions are worth: what they earn, and their scores.

    Scores are by a critic V(s), which is asked for each text once; else they are what is earned.
    """

    def __init__(self, rollouts: Rollouts, critic: Critic | None, discount: Discount) -> None:
        self.rollouts, self.critic, self.discount = rollouts, critic, discount
        self.by_value = critic is not None and critic.mode == "value"
        self._known: dict[str, float] = {}

    def of(self, outcomes: Sequence[Trajectory]) -> np.ndarray:
        """Of B decisions that were played (B, 2): what they earned, and their scores."""
        scores = earned = rewards_of(outcomes, self.discount)
        if self.by_value:
            after = self.values([outcome.observations[1] for outcome in outcomes])
            scores = scores_of(outcomes, earned, after, self.discount)
        return np.stack([earned, scores], axis=1)

    def expected(
        self, states: Sequence[State | RecordedText], outcomes: Sequence[Trajectory]
    ) -> np.ndarray:
        """The same, exactly, but for what is no chain: its only play tells all."""
        means, parse = self.of(outcomes), self.rollouts.env.extractor.parse
        rows = [i for i, one in enumerate(outcomes) if not one.infos[1]["invalid_action"]]
        if rows:
            means[rows] = expected_worth(
                self.rollouts.env,
                [state_of(states[row]) for row in rows],
                [parse(outcomes[row].actions[0].text).actions for row in rows],
                self.values if self.by_value else None,
                self.discount,
            )
        return means

    def values(self, texts: Sequence[str]) -> np.ndarray:
        """V of B texts (B,)."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            with self.rollouts.measure("score"):
                self._known |= dict(zip(new, self.critic.values(new), strict=True))
        return np.array([self._known[text] for text in texts])


def rewards_of(outcomes: Sequence[Trajectory], discount: Discount) -> np.ndarray:
    """Discounted rewards (B,) of single decisions."""
    return np.array([o.chain_rewards(discount.gamma, discount.per)[0] for o in outcomes])


def scores_of(
    outcomes: Sequence[Trajectory], earned: np.ndarray, next_values: np.ndarray, discount: Discount
) -> np.ndarray:
    """Scores (B,) of single decisions: their rewards, and V of the texts after, discounted."""
    return chain_advantages(
        rewards=earned,
        num_actions=np.array([outcome.num_actions[0] for outcome in outcomes]),
        values=np.zeros(len(earned)),
        next_values=next_values,
        terminated=np.array([outcome.terminated for outcome in outcomes]),
        gamma=discount.gamma,
        discount_per=discount.per,
    )


def is_known(rollouts: Rollouts, states: Sequence[State | RecordedText]) -> bool:
    """Whether what chance will bring is known exactly, in the states behind all texts.

    Outcomes are listed for who reads the text, so that any of its states tells them.
    """
    if rollouts.deterministic is not False or rollouts.env.history != 1:
        return False
    return rollouts.env.view.outcomes is not None or not any(map(hides, states))


def expected_worth(
    env: LanguageEnv,
    states: Sequence[State],
    chains: Sequence[Sequence[int]],
    values: Values | None,
    discount: Discount,
) -> np.ndarray:
    """What B chains are expected to earn, each in a state of its own, and their scores: (B, 2).

    A score is E[r + γ^k V(next state)], discounted as `Trajectory.chain_rewards` says, V being that
    of the text that tells of the next state and of a bump; without `values` it is what is earned.
    It is known by the exact model, or where there is none by the outcomes that the view lists.
    """
    if env.view.model is None:
        return _by_outcomes(env, states, chains, values, discount)
    model = tabular_model(env.env, env.view)
    rows = model.non_terminal[[model.row(state) for state in states]]
    decisions = np.column_stack([rows, pad_chains(chains)])
    distinct, copies = np.unique(decisions, axis=0, return_inverse=True)
    starts, padded, copies = distinct[:, 0], distinct[:, 1:], copies.ravel()
    reach, rewards = play_chains(with_bumps(model), starts, padded, discount.inside)
    earned = rewards - env.chain_cost
    if values is None:
        return np.stack([earned, earned], axis=1)[copies]
    terminal = np.tile(model.terminal, 2)
    reached = np.flatnonzero(reach.any(axis=0) & ~terminal)
    bumped, numbers = np.divmod(reached, len(model.terminal))
    texts = [env.texts(model.states[n])[b] for n, b in zip(numbers, bumped, strict=True)]
    after = reach[:, reached] @ values(texts) if texts else 0.0
    scores = earned + discount.after((padded >= 0).sum(axis=1)) * after
    return np.stack([earned, scores], axis=1)[copies]


def _by_outcomes(
    env: LanguageEnv,
    states: Sequence[State],
    chains: Sequence[Sequence[int]],
    values: Values | None,
    discount: Discount,
) -> np.ndarray:
    """The same where the view lists what may come of an action.

    All that may come of a decision is gone through, and texts that read the same are valued once.
    """
    keys = [(str(state), tuple(chain)) for state, chain in zip(states, chains, strict=True)]
    decisions = dict(zip(keys, zip(states, chains, strict=True), strict=True))
    texts: Texts = {}
    ends = {key: _ends(env, *each, discount.inside, texts) for key, each in decisions.items()}
    distinct = list(dict.fromkeys(texts.values()))
    known = {} if values is None else dict(zip(distinct, values(distinct), strict=True))
    worth = {}
    for key, outcomes in ends.items():
        earned = sum(p * rewards for p, rewards, _ in outcomes) - env.chain_cost
        after = sum(p * known.get(text, 0.0) for p, _, text in outcomes)
        worth[key] = earned, earned + discount.after(len(key[1])) * after
    return np.array([worth[key] for key in keys])


def _ends(
    env: LanguageEnv, state: State, chain: Sequence[int], gamma: float, texts: Texts
) -> list[tuple[float, float, str | None]]:
    """All that may come of a chain: probability, rewards and text, none where it is over.

    Args:
        texts: new ones are added to it.
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
    return [(p, rewards, _text(env, after, bumped, texts)) for p, rewards, after, bumped in paths]


def _text(env: LanguageEnv, state: State | None, bumped: bool, texts: Texts) -> str | None:
    if state is None:
        return None
    key = str(state), bumped
    if key not in texts:
        texts[key] = env.texts(state)[1] if bumped else env.reset(options={"state": state})[0]
    return texts[key]
