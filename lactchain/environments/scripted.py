"""Policies that need no model, and the texts that random play meets.

All satisfy `lactchain.types.Policy`: each row of a batch draws from its own seed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lactchain.environments.chance import best_chains
from lactchain.environments.exact import FAR_SIGHTED, MAX_CHAINS, optimal_chains
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import tabular_model
from lactchain.types import Action, ChainGrammar, Policy

_MIXTURE_STREAM = 1  # keeps the coin of a mixture apart from the draws of its parts


class RowPolicy(ABC):
    """A policy that answers row by row; a subclass says what, in `complete`."""

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """Answers B observations; row b draws from `seeds[b]` alone."""
        return [Action(self.complete(*row)) for row in zip(observations, seeds, strict=True)]

    @abstractmethod
    def complete(self, text: str, seed: int) -> str:
        """What is said to one observation; `ValueError` where that states too little."""


class RandomChains(RowPolicy):
    """Chains of random actions, their lengths uniform in 1, …, `max_chain_length`.

    None stands for the longest legal chain.
    """

    name = "random"

    def __init__(self, grammar: ChainGrammar, max_chain_length: int | None = None) -> None:
        self.grammar = grammar
        self.max_chain_length = max_chain_length or grammar.max_chain_length

    def complete(self, text: str, seed: int) -> str:
        """A drawn chain."""
        rng = np.random.default_rng(seed)
        length = rng.integers(1, self.max_chain_length + 1)
        chain = rng.integers(len(self.grammar.action_names), size=length)
        return self.grammar.render(chain.tolist())


class OptimalChains(RowPolicy):
    """The best way from the state that the text states, cut to a legal chain.

    That is the shortest path to the goal, or what earns most where rewards lead elsewhere
    (`exact.goes_by_reward`); from a state without any way, one action.
    In a world with chance it is the legal chain that is worth most, `chain_cost` included, of so
    many actions at most that there are no more than `MAX_CHAINS`. Reads the text alone: the
    environment serves only to render all its states, once, and is left reset in one of them.

    Args:
        env: an environment whose view has an exact model; else a `ValueError`, as where two states
            with different best chains read the same.
        gamma: discount of an action, where there is chance.

    Attributes:
        lost: the states without a way.
    """

    name = "optimal"

    def __init__(self, env: LanguageEnv, gamma: float = FAR_SIGHTED) -> None:
        grammar = env.grammar
        model = tabular_model(env.env, env.view)
        if model.deterministic:
            chains = optimal_chains(model, grammar.max_chain_length)
        else:
            longest = _longest_listed(grammar)
            _, chains = best_chains(model, longest, gamma, chain_cost=env.chain_cost)
        ways = [*zip(model.non_terminal_states, chains, strict=True)]
        self.lost = [state for state, chain in ways if not chain]
        self._completions: dict[str, str] = {}
        for state, chain in ways:
            completion = grammar.render(chain or (0,))
            for text in env.texts(state):
                if self._completions.setdefault(text, completion) != completion:
                    raise ValueError(
                        f"template: expected a text for each state, but several read {text!r}"
                    )

    def complete(self, text: str, seed: int) -> str:
        """The chain of the state that the text states."""
        if text not in self._completions:
            raise ValueError(f"observation: expected a state of the environment, got {text!r}")
        return self._completions[text]


def _longest_listed(grammar: ChainGrammar) -> int:
    """The longest legal chain, or as long that all of at most that length can be gone through."""
    lengths = range(1, grammar.max_chain_length + 1)
    shorter = (replace(grammar, max_chain_length=length) for length in lengths)
    return max((g.max_chain_length for g in shorter if g.num_completions <= MAX_CHAINS), default=1)


class Mixture:
    """Each completion comes from one of two policies, by a coin of its own.

    With a probability of `competent_fraction` it is `competent` that answers, else `other`.
    """

    def __init__(self, competent: Policy, other: Policy, competent_fraction: float) -> None:
        if not 0 <= competent_fraction <= 1:
            raise ValueError(
                f"competent_fraction: expected a probability, got {competent_fraction}"
            )
        self.competent, self.other = competent, other
        self.competent_fraction = competent_fraction
        self.reads_states = any(getattr(part, "reads_states", False) for part in (competent, other))
        self.name = f"{competent_fraction:g} {competent.name}, else {other.name}"

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """Answers B observations; row b draws from `seeds[b]` alone."""
        coins = [np.random.default_rng((seed, _MIXTURE_STREAM)).random() for seed in seeds]
        completions: dict[int, Action] = {}
        for policy, chosen in ((self.competent, True), (self.other, False)):
            rows = [b for b, coin in enumerate(coins) if (coin < self.competent_fraction) == chosen]
            acted = policy.act([observations[b] for b in rows], [seeds[b] for b in rows])
            completions.update(zip(rows, acted, strict=True))
        return [completions[b] for b in range(len(observations))]


class RememberingPolicy:
    """A `Policy` that says the same to the same text, whatever the seed; asked once about each."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.name = policy, policy.name
        self.reads_states = getattr(policy, "reads_states", False)
        self._acted: dict[str, Action] = {}

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """The policy's completions to B observations."""
        rows = dict(zip(observations, seeds, strict=True))
        new = [text for text in rows if text not in self._acted]
        if new:
            acted = self.policy.act(new, [rows[text] for text in new])
            self._acted |= dict(zip(new, acted, strict=True))
        return [self._acted[text] for text in observations]


def random_play_texts(env: LanguageEnv, num_episodes: int = 200, seed: int = 0) -> Iterator[str]:
    """Observations and completions of episodes played with random chains.

    Each episode begins with a completion that is no chain, so that what the environment says to
    that is among the texts. It is cut where it comes to a state that is held back. The seeds of
    episodes count on from that of the first.
    """
    policy, held_back = RandomChains(env.grammar), env.held_back
    for episode in range(seed, seed + num_episodes):
        observation, info = env.reset(seed=episode)
        seeds = range(episode * env.max_chains, (episode + 1) * env.max_chains)
        completions = iter(["", *(action.text for action in policy.act([""] * len(seeds), seeds))])
        over = False
        while info["state"] not in held_back:
            yield observation
            if over:
                break
            completion = next(completions)
            yield completion
            observation, _, terminated, truncated, info = env.step(completion)
            over = terminated or truncated
