"""Scored candidates: K completions to each start state, played, and valued by a critic."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from lactchain.data.chain_values import ChainWorth, Plays, is_known
from lactchain.data.episodes import RecordedText, state_of
from lactchain.data.preferences import Candidates
from lactchain.data.rollouts import Rollouts
from lactchain.environments.exact import FAR_SIGHTED
from lactchain.environments.extractors import Chain
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.functional.random_streams import derive_seed
from lactchain.types import Action, Critic, Discount, Policy


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
    means over plays (`Plays`). So they are where a text that was asked stands for several
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
        actions = _explored(rollouts.env, repeated, seeds, own, num_candidates, explorers, legal)
    plays = Plays(rollouts, [s for s in states for _ in range(num_candidates)], actions, seed)
    is_chain = np.array([not outcome.infos[1]["invalid_action"] for outcome in plays.first])
    is_chain = is_chain.reshape(len(states), num_candidates)
    returns, advantages = _worth(plays, repeated, is_chain, critic)
    rows = [slice(i * num_candidates, (i + 1) * num_candidates) for i in range(len(states))]
    return [
        Candidates(
            observation=observations[i],
            actions=tuple(actions[rows[i]]),
            returns=tuple(returns[rows[i]].tolist()),
            advantages=() if advantages is None else tuple(map(float, advantages[rows[i]])),
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
    `is_chain` (S, K) says which of them are chains.
    """
    discount = Discount(FAR_SIGHTED)
    if critic is not None:
        discount = Discount(critic.gamma, critic.discount_per)
    worth = ChainWorth(plays.rollouts, critic, discount)
    if not plays.throw_dice():
        if worth.by_value:  # all at once: batches are full then
            worth.values([*observations, *(play.observations[1] for play in plays.first)])
        returns, scores = worth.of(plays.first).T
    elif is_known(plays.rollouts, plays.states):
        returns, scores = worth.expected(plays.states, plays.first).T
    else:
        returns, scores = plays.means(is_chain.shape[1], worth.of).T
    if critic is None:
        return returns, None
    if worth.by_value:
        return returns, scores - worth.values(observations)
    with plays.rollouts.measure("score"):
        q = critic.values(observations, [action.text for action in plays.actions])
    q, weights = q.reshape(is_chain.shape), is_chain | ~is_chain.any(axis=1, keepdims=True)
    return returns, (q - np.average(q, axis=1, weights=weights, keepdims=True)).ravel()


def _explored(
    env: LanguageEnv,
    observations: Sequence[str],
    seeds: Sequence[int],
    own: Sequence[Action],
    count: int,
    explorers: Sequence[Policy],
    legal: Sequence[Policy],
) -> list[Action]:
    """A policy's `count` completions to each state, with those that others give in their place."""
    actions, states = list(own), [range(i, i + count) for i in range(0, len(own), count)]

    @cache
    def chain(text: str) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        reading = env.read(text)
        return (reading.actions, reading.utterances) if isinstance(reading, Chain) else None

    def ask(policies: Sequence[Policy], places: Sequence[Sequence[int]], *stream: str) -> None:
        """Asks policies in turn for places of each state, until that has two different chains."""
        for number, policy in enumerate(policies, 1):
            rows = [
                row
                for state, some in zip(states, places, strict=True)
                if len({chain(actions[row].text) for row in state} - {None}) < 2
                for row in some
            ]
            if not rows:
                return
            found = policy.act(
                [observations[row] for row in rows],
                [derive_seed(seeds[row], number, *stream) for row in rows],
            )
            for row, action in zip(rows, found, strict=True):
                actions[row] = action

    silent = [[row for row in rows if not chain(actions[row].text)] for rows in states]
    ask(legal, [rows[1:] for rows in silent], "legal")
    readings = [{chain(actions[row].text) or actions[row].text for row in rows} for rows in states]
    ask(explorers, [r[1:] if len(s) == 1 else [] for r, s in zip(states, readings, strict=True)])
    return actions


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
    alike: dict[str, list[State]] = {}
    for i, outcome in enumerate(rollouts.outcomes(states[:count], actions, dice)):
        state = outcome.infos[1]["state"]
        if not outcome.terminated and state not in rollouts.env.held_back:
            after[i] = outcome.observations[1]
            alike.setdefault(after[i], []).append(state)
    asked = {text: RecordedText(text, tuple(found)) for text, found in alike.items()}
    return [asked[after[i]] if i in after else state for i, state in enumerate(states)]
