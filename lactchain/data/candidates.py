"""Scored candidates: K completions to each start state, played, and valued by a critic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from lactchain.data.chain_values import ChainWorth, Plays, is_known, rewards_of, scores_of
from lactchain.data.episodes import RecordedText, state_of
from lactchain.data.preferences import Candidates
from lactchain.data.rollouts import Rollouts
from lactchain.environments.exact import FAR_SIGHTED
from lactchain.environments.extractors import Chain
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.functional.random_streams import derive_seed
from lactchain.types import Action, Critic, Discount, Policy, Trajectory


def sample_candidates(
    policy: Policy,
    rollouts: Rollouts,
    states: Sequence[State | RecordedText],
    num_candidates: int,
    seed: int,
    critic: Critic | None,
    explorers: Sequence[Policy] = (),
    legal: Sequence[Policy] = (),
) -> list[Candidates]:
    """K completions to each of S states; without a critic they have returns and no advantages.

    The policy is given each state K times in a row, so that its prompt is read once. Row seeds
    follow from `seed` and the position in `states`. Where the world throws dice, returns and
    advantages are what can be expected: exactly by its model or the outcomes that it lists, or else
    means over plays (`worth.Plays`). So they are where a text that was asked stands for several
    states.

    Args:
        states: what they show when an episode begins is asked; or texts themselves.
        critic: V(s), or Q(s, chain) less the mean over those of the K completions that are chains,
            which stands for V(s).
        explorers: policies that are asked in turn, where all completions are one chain so far, for
            all but the first of them: a policy that is sure of itself finds nothing better.
        legal: policies that say chains alone, asked in turn where completions are no chains and
            there are no two chains to choose from, for all but the first of those.
    """
    observations = [
        state.text if isinstance(state, RecordedText) else rollouts.observe([state])[0]
        for state in states
    ]
    repeated = [observation for observation in observations for _ in range(num_candidates)]
    seeds = [derive_seed(seed, i, k) for i in range(len(states)) for k in range(num_candidates)]
    with rollouts.measure("generate"):
        own = policy.act(repeated, seeds)
        asked = _Asked(rollouts.env, repeated, seeds, list(own), num_candidates)
        asked.where_silent(legal)
        asked.where_sure(explorers)
    plays = Plays(rollouts, [s for s in states for _ in range(num_candidates)], asked.actions, seed)
    is_chain = np.array([not outcome.infos[1]["invalid_action"] for outcome in plays.first])
    is_chain = is_chain.reshape(len(states), num_candidates)
    returns, advantages = _worth(plays, repeated, is_chain, critic)
    scores = [()] * len(states) if advantages is None else advantages.reshape(is_chain.shape)
    rows = [slice(i * num_candidates, (i + 1) * num_candidates) for i in range(len(states))]
    return [
        Candidates(
            observation=observations[i],
            actions=tuple(asked.actions[rows[i]]),
            returns=tuple(returns[rows[i]].tolist()),
            advantages=tuple(map(float, scores[i])),
            is_chain=tuple(is_chain[i].tolist()),
            env_id=rollouts.config.id,
            seed=seed,
            state=state_of(state),
            own_actions=tuple(own[rows[i]]),
        )
        for i, state in enumerate(states)
    ]


def _worth(
    plays: Plays, observations: Sequence[str], is_chain: np.ndarray, critic: Critic | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns (S * K,) of completions that were played, and their advantages by a critic.

    They are discounted as the critic's values are, and without one by `FAR_SIGHTED` an action.

    Args:
        is_chain: (S, K) which of them are chains.
    """
    discount = Discount(FAR_SIGHTED)
    if critic is not None:
        discount = Discount(critic.gamma, critic.discount_per)
    rollouts, returns = plays.rollouts, rewards_of(plays.first, discount)
    if plays.throw_dice():
        worth = ChainWorth(rollouts, critic, discount)
        if is_known(rollouts, plays.states):
            means = worth.expected(plays.states, plays.first)
        else:
            means = plays.means(is_chain.shape[1], worth.of)
        returns, scores = means.T
        if worth.by_value:
            return returns, scores - worth.values(observations)
    if critic is None:
        return returns, None
    with rollouts.measure("score"):
        return returns, _advantages(critic, observations, plays.first, returns, is_chain, discount)


class _Asked:
    """K completions to each of some states, of which others than the policy may give some.

    Attributes:
        actions: S * K, a state's in a row.
    """

    def __init__(
        self,
        env: LanguageEnv,
        observations: Sequence[str],
        seeds: Sequence[int],
        actions: list[Action],
        count: int,
    ) -> None:
        self.actions, self._observations, self._seeds = actions, observations, seeds
        self._states = [range(i, i + count) for i in range(0, len(actions), count)]

        @cache
        def chain(text: str) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
            reading = env.read(text)
            return (reading.actions, reading.utterances) if isinstance(reading, Chain) else None

        self._chain = chain

    def where_silent(self, policies: Sequence[Policy]) -> None:
        """Has all but the first no-chain replaced, in states without two different chains."""
        silent = [[row for row in rows if self._read(row) is None][1:] for rows in self._states]
        self._explore(policies, silent, "legal")

    def where_sure(self, policies: Sequence[Policy]) -> None:
        """Has all but the first completion replaced, in states where all of them read the same."""
        texts = (
            {self._read(row) or self.actions[row].text for row in rows} for rows in self._states
        )
        sure = [
            rows[1:] if len(read) == 1 else []
            for rows, read in zip(self._states, texts, strict=True)
        ]
        self._explore(policies, sure)

    def _explore(
        self, policies: Sequence[Policy], wanted: Sequence[Sequence[int]], *stream: str
    ) -> None:
        """Asks policies in turn for rows of each state, until that has two different chains."""
        for number, policy in enumerate(policies, 1):
            rows = [
                row
                for state, some in zip(self._states, wanted, strict=True)
                if len({self._read(row) for row in state} - {None}) < 2
                for row in some
            ]
            if not rows:
                return
            found = policy.act(
                [self._observations[row] for row in rows],
                [derive_seed(self._seeds[row], number, *stream) for row in rows],
            )
            for row, action in zip(rows, found, strict=True):
                self.actions[row] = action

    def _read(self, row: int) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        return self._chain(self.actions[row].text)


def some_after_completion(
    policy: Policy, rollouts: Rollouts, states: Sequence[State], share: float, seed: int
) -> list[State | RecordedText]:
    """S states, the first share of them by what they show one completion later.

    The policy's own completion leads there. One that would end the episode, or lead to a state that
    is held back, is left out.
    """
    count = round(share * len(states))
    if not count:
        return list(states)
    seeds = [derive_seed(seed, "first", i) for i in range(count)]
    with rollouts.measure("generate"):
        actions = policy.act(rollouts.observe(states[:count]), seeds)
    # Where there are dice, equal completions are not to lead all to the same state.
    dice = seed if rollouts.deterministic else seeds
    after: dict[int, str] = {}
    told: dict[str, list[State]] = {}
    for i, outcome in enumerate(rollouts.outcomes(states[:count], actions, dice)):
        state = outcome.infos[1]["state"]
        if not outcome.terminated and state not in rollouts.env.held_back:
            after[i] = outcome.observations[1]
            told.setdefault(after[i], []).append(state)
    asked = {text: RecordedText(text, tuple(found)) for text, found in told.items()}
    return [asked[after[i]] if i in after else state for i, state in enumerate(states)]


def _advantages(
    critic: Critic,
    before: Sequence[str],
    outcomes: Sequence[Trajectory],
    returns: np.ndarray,
    is_chain: np.ndarray,
    discount: Discount,
) -> np.ndarray:
    """Advantages (S, K) of single-decision episodes, whose S * K first texts were `before`.

    Args:
        is_chain: (S, K) which completions are chains; where none is, the mean is over all.
    """
    shape = is_chain.shape
    if critic.mode == "action_value":
        q = critic.values(before, [outcome.actions[0].text for outcome in outcomes]).reshape(shape)
        weights = is_chain | ~is_chain.any(axis=1, keepdims=True)
        return q - np.average(q, axis=1, weights=weights, keepdims=True)
    values = critic.values([*before, *(outcome.observations[1] for outcome in outcomes)])
    now, after = np.split(values, [len(before)])
    return (scores_of(outcomes, returns, after, discount) - now).reshape(shape)
