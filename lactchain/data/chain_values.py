"""What chains are worth: what they earn, and with V of the state after, r + γ^k V(next state).

Of a chain that was played, by that play; of a world with chance that is known, exactly: by its
model, or by the outcomes that its view lists.

Otherwise means over plays tell it, since one play would rank completions by luck. Each is played as
often as its rank needs: by sequential halving (Karnin, Koren, Somekh 2013, "Almost optimal
exploration in multi-armed bandits"), for the best and the worst of a state at once, since these two
make the pair. All completions meet the same dice (common random numbers): their first plays have
one seed, their second ones another, and so on. It draws the state as well, where a text stands for
several: all completions are played in the same.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lactchain.data.episodes import RecordedText, hides, state_of
from lactchain.data.preferences import chain_advantages
from lactchain.data.rollouts import Rollouts
from lactchain.environments.chance import play_chains, with_bumps
from lactchain.environments.exact import pad_chains
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, tabular_model
from lactchain.functional.random_streams import derive_seed
from lactchain.functional.ties import levelled
from lactchain.types import Action, Critic, Discount, Trajectory

PLAYS_PER_COMPLETION = 16
"""Plays for a state, over the number of chains among its completions, equal ones included."""

Key = tuple[str, str]
"""What completions are told apart by: the state, and the text."""

Worth = Callable[[Sequence[Trajectory]], np.ndarray]
"""Of B single decisions, what each earned and what it is ranked by (B, 2)."""

Values = Callable[[Sequence[str]], np.ndarray]
"""V (B,) of B texts."""


class ChainWorth:
    """What single decisions earn, and what they are ranked by, both (B, 2).

    That is r + γ^k V(next state) by a critic V(s), which is asked for each text once; else it is
    what they earn.
    """

    def __init__(self, rollouts: Rollouts, critic: Critic | None, discount: Discount) -> None:
        self.rollouts, self.critic, self.discount = rollouts, critic, discount
        self.by_value = critic is not None and critic.mode == "value"
        self._known: dict[str, float] = {}

    def of(self, outcomes: Sequence[Trajectory]) -> np.ndarray:
        """Of B decisions, by what came out of them."""
        gamma, per = self.discount.gamma, self.discount.per
        earned = np.array([outcome.chain_rewards(gamma, per)[0] for outcome in outcomes])
        if not self.by_value:
            return np.stack([earned, earned], axis=1)
        scores = chain_advantages(
            rewards=earned,
            num_actions=np.array([outcome.num_actions[0] for outcome in outcomes]),
            values=np.zeros(len(earned)),
            next_values=self.values([outcome.observations[1] for outcome in outcomes]),
            terminated=np.array([outcome.terminated for outcome in outcomes]),
            gamma=gamma,
            discount_per=per,
        )
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
    ends = {key: _ends(env, *decision, discount.inside) for key, decision in decisions.items()}
    after = {(str(state), bumped): state for of in ends.values() for *_, state, bumped in of}
    texts = {key: _text(env, state, key[1]) for key, state in after.items() if state is not None}
    distinct = list(dict.fromkeys(texts.values()))
    known = {} if values is None else dict(zip(distinct, values(distinct), strict=True))
    worth = {}
    for key, outcomes in ends.items():
        earned = sum(p * rewards for p, rewards, *_ in outcomes) - env.chain_cost
        reached = ((p, texts.get((str(state), bumped))) for p, _, state, bumped in outcomes)
        following = sum(p * known.get(text, 0.0) for p, text in reached)
        worth[key] = earned, earned + discount.after(len(key[1])) * following
    return np.array([worth[key] for key in keys])


def _ends(
    env: LanguageEnv, state: State, chain: Sequence[int], gamma: float
) -> list[tuple[float, float, State | None, bool]]:
    """All that may come of a chain: probability, rewards, state (None: over), and if it bumped."""
    paths: list[tuple[float, float, State | None, bool]] = [(1.0, 0.0, state, False)]
    for step, action in enumerate(chain):
        over, going = [path for path in paths if path[2] is None], []
        for probability, rewards, before, bumped in [path for path in paths if path[2] is not None]:
            env.view.set_state(env.env, before)
            for share, reward, after in env.view.outcomes(env.env, action):
                earned = rewards + gamma**step * reward
                going.append((probability * share, earned, after, bumped or after == before))
        paths = over + going
    return paths


def _text(env: LanguageEnv, state: State, bumped: bool) -> str:
    return env.texts(state)[1] if bumped else env.reset(options={"state": state})[0]


# --- means over plays ---


class Plays:
    """Completions to states, and what came out of them.

    Equal completions to equal states share their plays. What is no chain does nothing, and is
    played once.

    Args:
        states, actions: B states, and a completion to each.
        seed: of the first plays; those of the others follow from it.

    Attributes:
        first: what came out of the first play of each of the B.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        states: Sequence[State | RecordedText],
        actions: Sequence[Action],
        seed: int,
    ) -> None:
        self.rollouts, self.states, self.actions, self.seed = rollouts, states, actions, seed
        self.first = rollouts.outcomes(states, actions, seed)
        self._keys = [(str(s), action.text) for s, action in zip(states, actions, strict=True)]
        self._decisions = dict(zip(self._keys, zip(states, actions, strict=True), strict=True))
        self._counts = Counter(dict.fromkeys(self._keys, 1))
        self._latest = list(dict(zip(self._keys, self.first, strict=True)).items())
        self._chains = {
            key: None for key, one in self._latest if not one.infos[1]["invalid_action"]
        }

    def throw_dice(self) -> bool:
        """Whether chance has a part: by the exact model, or else by a second play of each.

        What a text hides is chance for who reads it.
        """
        if any(map(hides, self.states)):
            return True
        if self.rollouts.deterministic is not None:
            return not self.rollouts.deterministic
        first, second = dict(self._latest), self._play(dict.fromkeys(self._chains, 1))
        self._latest += second
        return any(_seen(first[key]) != _seen(outcome) for key, outcome in second)

    def means(self, num_candidates: int, worth: Worth) -> np.ndarray:
        """Mean earnings and scores (B, 2) of completions, of which K in a row are to one state."""
        starts = range(0, len(self._keys), num_candidates)
        of_states = [self._keys[i : i + num_candidates] for i in starts]
        contests = [
            _Contest([key for key in keys if key in self._chains])
            for keys in of_states
            # In some states one play of a completion tells all.
            if not self.rollouts.deterministic or hides(self._decisions[keys[0]][0])
        ]
        sums = dict.fromkeys(self._counts, np.zeros(2))
        self._add(sums, worth)
        while going := [contest for contest in contests if len(contest.best) > 1]:
            wanted: Counter[Key] = Counter()
            for contest in going:
                wanted |= contest.plays_wanted()  # the greater number of each
            self._latest = self._play(wanted)
            self._add(sums, worth)
            scores = {key: sums[key][1] / self._counts[key] for key in wanted}
            for contest in going:
                contest.halve(scores)
        return np.array([sums[key] / self._counts[key] for key in self._keys])

    def _add(self, sums: dict[Key, np.ndarray], worth: Worth) -> None:
        """Adds what the latest plays were worth."""
        values = worth([outcome for _, outcome in self._latest])
        for (key, _), value in zip(self._latest, values, strict=True):
            sums[key] = sums[key] + value

    def _play(self, wanted: Mapping[Key, int]) -> list[tuple[Key, Trajectory]]:
        """So many more plays of each."""
        rows = [(key, self._counts[key] + i) for key, count in wanted.items() for i in range(count)]
        decisions = [(*self._decisions[key], derive_seed(self.seed, "play", n)) for key, n in rows]
        outcomes = list(self.rollouts.plays(decisions))
        self._counts.update(wanted)
        replayed = sum(len(outcome.infos[1]["executed"]) for outcome in outcomes)
        self.rollouts.tally["num_replayed_actions"] += replayed
        return [(key, outcome) for (key, _), outcome in zip(rows, outcomes, strict=True)]


class _Contest:
    """The different completions to a state that may still be the best of them, or the worst."""

    def __init__(self, completions: Sequence[Key]) -> None:
        self.best = self.worst = list(dict.fromkeys(completions))
        num_rounds = math.ceil(math.log2(max(2, len(self.best))))
        self._plays_per_round = PLAYS_PER_COMPLETION * len(completions) // num_rounds

    def plays_wanted(self) -> Counter[Key]:
        """How often each that is left is to be played in the next round: all equally often."""
        left = dict.fromkeys(self.best + self.worst)
        return Counter(dict.fromkeys(left, max(1, self._plays_per_round // len(left))))

    def halve(self, scores: Mapping[Key, float]) -> None:
        half = math.ceil(len(self.best) / 2)
        left = dict.fromkeys(self.best + self.worst)
        level = dict(zip(left, levelled(np.array([scores[key] for key in left])), strict=True))
        self.best = sorted(self.best, key=lambda key: (-level[key], len(key[1])))[:half]
        self.worst = sorted(self.worst, key=lambda key: (level[key], -len(key[1])))[:half]


def _seen(outcome: Trajectory) -> tuple[Any, ...]:
    return outcome.observations, outcome.rewards, outcome.terminated
