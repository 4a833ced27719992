"""What can be expected in a world with chance that is known exactly: of chains, of policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lactchain.data.exact_values import can_enumerate
from lactchain.data.outcomes import Values, worth_by_outcomes
from lactchain.environments.chance import best_chains, best_within, play_chains, with_bumps
from lactchain.environments.exact import FAR_SIGHTED, TabularModel, pad_chains
from lactchain.environments.extractors import Chain
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, tabular_model
from lactchain.types import Policy, ask


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
    It is known by the exact model, or where there is none by the outcomes that the view lists.
    """
    if env.view.model is None:
        return worth_by_outcomes(env, states, chains, values, gamma, discount_per)
    model = tabular_model(env.env, env.view)
    rows = model.non_terminal[[model.row(state) for state in states]]
    decisions = np.column_stack([rows, pad_chains(chains)])
    distinct, copies = np.unique(decisions, axis=0, return_inverse=True)
    starts, padded, copies = distinct[:, 0], distinct[:, 1:], copies.ravel()
    per_action = discount_per == "action"
    reach, rewards = play_chains(with_bumps(model), starts, padded, gamma if per_action else 1.0)
    earned = rewards - env.chain_cost
    if values is None:
        return np.stack([earned, earned], axis=1)[copies]
    terminal = np.tile(model.terminal, 2)
    reached = np.flatnonzero(reach.any(axis=0) & ~terminal)
    bumped, numbers = np.divmod(reached, len(model.terminal))
    told = [env.texts(model.states[n])[b] for n, b in zip(numbers, bumped, strict=True)]
    after = reach[:, reached] @ values(told) if told else 0.0
    discounts = gamma ** (padded >= 0).sum(axis=1) if per_action else gamma
    return np.stack([earned, earned + discounts * after], axis=1)[copies]


def expected_figures(policy: Policy, env: LanguageEnv, at_once: int = 256) -> dict[str, float]:
    """Exact figures of a policy beside the greatest over legal chains, means over practised starts.

    `expected_success`, `expected_return` (undiscounted) and `optimum_success`, `optimum_return` are
    of `env.max_chains` completions, the optima each by a policy of its own that knows how many are
    left. `expected_value` and `optimum_value` are discounted by .99 an action, without a limit:
    what a critic estimates, but that a refusal costs at least what the worst action does: else
    silence would beat the optimum wherever a step costs. `of_optimum` is the share of the second
    that the first is; where both are losses, the other way round. A time limit that counts actions
    is in none of them.

    Nothing where there is no chance, or where it cannot be computed: without an exact model, with
    too many chains, with a history in the text, or with a rule of the world's own for text that is
    no chain. The policy must always say the same to a text; it is asked about `at_once` at most.
    """
    if not can_enumerate(env) or env.history != 1 or env.view.step_takes_text:
        return {}
    model = tabular_model(env.env, env.view)
    if model.deterministic:
        return {}
    longest, cost = env.grammar.max_chain_length, env.chain_cost
    success, returns = best_within(model, env.max_chains, longest, cost)
    values, _ = best_chains(model, longest, FAR_SIGHTED, chain_cost=cost)
    answers = _Answers.of(policy, env, model, at_once)
    figures = {
        "expected_success": answers.within(env.max_chains, answers.goal),
        "expected_return": answers.within(env.max_chains, answers.gains),
        "expected_value": answers.discounted(),
        "optimum_success": success,
        "optimum_return": returns,
        "optimum_value": values,
    }
    rows = [model.row(state) for state in env.start_states() if state not in env.held_back]
    means = {name: float(values[rows].mean()) for name, values in figures.items()}
    return means | {"of_optimum": _share(means["expected_value"], means["optimum_value"])}


@dataclass(frozen=True)
class _Answers:
    """What a policy's completions to all M texts lead to and earn.

    A text tells of one of N states, and of what came of the last completion: nothing to tell, a
    bump, or a refusal. So there are M = 3 N of them, in the order of `LanguageEnv.texts`.

    Attributes:
        transition: (M, M) probabilities of the texts after, where the episode goes on.
        goal: (M,) probability that it ends well.
        gains: (M,) expected rewards.
        discounted_gains: (M,) the same, discounted, a refusal being as bad as the worst action.
        discounts: (M,) of what follows.
    """

    transition: np.ndarray
    goal: np.ndarray
    gains: np.ndarray
    discounted_gains: np.ndarray
    discounts: np.ndarray

    @classmethod
    def of(cls, policy: Policy, env: LanguageEnv, model: TabularModel, at_once: int) -> _Answers:
        """Asks the policy about every text."""
        by_state = [env.texts(state) for state in model.non_terminal_states]
        texts = [text for row in zip(*by_state, strict=True) for text in row]
        distinct = list(dict.fromkeys(texts))
        answers = ask(policy, distinct, [0] * len(distinct), at_once)
        said = dict(zip(distinct, answers, strict=True))
        readings = [env.extractor.parse(said[text].text) for text in texts]
        legal = np.array([isinstance(reading, Chain) for reading in readings])
        chains = pad_chains([r.actions if isinstance(r, Chain) else () for r in readings])
        starts, told = np.tile(model.non_terminal, 3), with_bumps(model)
        reach, rewards = play_chains(told, starts, chains)
        _, discounted = play_chains(told, starts, chains, FAR_SIGHTED)
        here, refused = np.arange(len(starts)), len(starts) * 2 // 3
        transition = np.zeros((len(starts),) * 2)
        transition[:, :refused] = reach[:, told.non_terminal]
        transition[~legal] = 0.0
        transition[here, refused + here % len(model.non_terminal)] += ~legal
        beside = np.where(legal, 0.0, env.invalid_penalty) - env.chain_cost
        worst = min(env.invalid_penalty, float(model.reward.min()))
        return cls(
            transition=transition,
            goal=reach @ told.goal,
            gains=rewards + beside,
            discounted_gains=discounted + np.where(legal, 0.0, worst) - env.chain_cost,
            discounts=FAR_SIGHTED ** np.maximum(1, (chains >= 0).sum(axis=1)),
        )

    def within(self, num_chains: int, gains: np.ndarray) -> np.ndarray:
        """Expected sum (N,) of gains (M,) in so many completions, from each state."""
        values = np.zeros(len(gains))
        for _ in range(num_chains):
            values = gains + self.transition @ values
        return values[: len(values) // 3]

    def discounted(self) -> np.ndarray:
        """Expected discounted sum (N,) of all that is earned."""
        system = np.eye(len(self.gains)) - self.discounts[:, None] * self.transition
        return np.linalg.solve(system, self.discounted_gains)[: len(self.gains) // 3]


def _share(part: float, whole: float) -> float:
    """How much of the greatest is reached, at most 1; NaN where neither is a gain or a loss.

    Negative where there is a loss, and the greatest is a gain.
    """
    if whole <= 0:
        part, whole = whole, part
    return part / whole if whole else float("nan")
