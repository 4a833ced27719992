"""Exact figures of a world that is known: of a critic, of a policy, and the best of any policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lactchain.data.evaluations import StateValues
from lactchain.data.parquet import NUMBER, Format, work_through
from lactchain.environments import chance, exact
from lactchain.environments.exact import FAR_SIGHTED, TabularModel, pad_chains
from lactchain.environments.extractors import Chain
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import tabular_model
from lactchain.types import Critic, Policy, Trajectory, ask

if TYPE_CHECKING:
    from lactchain.models.actor import LanguageActor

ROWS = Format(
    "chain_probabilities",
    1,
    {"probabilities": pa.list_(NUMBER)},
    lambda probabilities: probabilities,
    lambda row: {"probabilities": row},
)

# So many states of the 4x4 grid should take a 7B model about ten seconds of a GPU. Signals are
# noticed between shards, and launchers grant thirty seconds.
STATES_PER_SHARD = 16


@dataclass(frozen=True)
class ExactPolicy:
    """What an actor answers in every state, and how often.

    Attributes:
        chains: (C, L) the actions of each completion, padded with -1.
        probabilities: (S, C) of each, in each state of the view.
    """

    chains: np.ndarray
    probabilities: np.ndarray


def can_enumerate(env: LanguageEnv) -> bool:
    """Whether there are few enough chains, and the view lists states and has an exact model."""
    known = env.view.states is not None and env.view.model is not None
    return known and env.grammar.num_completions <= exact.MAX_CHAINS


def exact_policy(actor: "LanguageActor", env: LanguageEnv, folder: Path) -> ExactPolicy:
    """The policy of an actor under constrained decoding, from enumerating every legal completion.

    The processes share the states out, by files in a folder that all of them see; those of a killed
    run, and of an `Interrupted` one, are kept.
    """
    observations = [env.reset(options={"state": state})[0] for state in env.view_states()]

    def make(part: Sequence[str], _: int) -> tuple[np.ndarray, dict[str, float]]:
        return actor.enumerate(part)[1], {}

    completions, _ = actor.enumerate([])
    chains = pad_chains([env.extractor.parse(completion).actions for completion in completions])
    size, title = STATES_PER_SHARD, "exact values"
    rows, _ = work_through(folder, observations, size, make, ROWS, title)
    return ExactPolicy(chains, np.array(rows))


def critic_against_exact(critic: Critic, policy: ExactPolicy, env: LanguageEnv) -> StateValues:
    """V(s) by the critic beside V^π(s), from solving the linear system, in all states.

    The state must be all that the observation says: no text about what happened before.
    """
    states = env.view_states()
    observations = [env.reset(options={"state": state})[0] for state in states]
    model, discount = env.view.model(env.env), (critic.gamma, critic.discount_per)
    costs = env.invalid_penalty, env.chain_cost
    true = exact.policy_values(model, policy.chains, policy.probabilities, *discount, *costs)
    estimates = tuple(map(float, critic.values(observations)))
    return StateValues(tuple(states), estimates, tuple(true.tolist()), *discount)


def expected_figures(policy: Policy, env: LanguageEnv, at_once: int = 256) -> dict[str, float]:
    """Exact figures of a policy beside the greatest over legal chains, means over practised starts.

    `expected_success`, `expected_return` (undiscounted) and `optimum_success`, `optimum_return` are
    of `env.max_chains` completions, the optima each by a policy of its own that knows how many are
    left. `expected_value` and `optimum_value` are discounted by .99 an action, without a limit:
    what a critic estimates, but that a refusal costs at least what the worst action does: else
    silence would beat the optimum wherever a step costs. `of_optimum` is the share of the second
    that the first is; where both are losses, the other way round. Gymnasium's time limit, which
    counts actions, is in the first four where a completion is one action, and else in none.

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
    limit = env.env.spec and env.env.spec.max_episode_steps
    most = min(env.max_chains, limit) if limit and longest == 1 else env.max_chains
    success, returns = chance.within_chains(model, most, longest, cost)
    values, _ = chance.best_chains(model, longest, FAR_SIGHTED, chain_cost=cost)
    answers = _Answers(policy, env, model, at_once)
    figures = {
        "expected_success": answers.within(most, answers.goal),
        "expected_return": answers.within(most, answers.gains),
        "expected_value": answers.discounted(),
        "optimum_success": success,
        "optimum_return": returns,
        "optimum_value": values,
    }
    rows = [model.row(state) for state in env.start_states() if state not in env.held_back]
    means = {name: float(values[rows].mean()) for name, values in figures.items()}
    return means | {"of_optimum": _share(means["expected_value"], means["optimum_value"])}


class _Answers:
    """What a policy's completions to all M texts lead to and earn.

    A text tells of one of N states, and of what came of the last completion: nothing to tell, a
    bump, or a refusal. So there are M = 3 N of them, in the order of `LanguageEnv.texts`.

    Attributes:
        goal: (M,) probability that a completion ends the episode well.
        gains: (M,) expected rewards.
    """

    def __init__(self, policy: Policy, env: LanguageEnv, model: TabularModel, at_once: int) -> None:
        by_state = [env.texts(state) for state in model.non_terminal_states]
        texts = [text for row in zip(*by_state, strict=True) for text in row]
        distinct = list(dict.fromkeys(texts))
        answers = ask(policy, distinct, [0] * len(distinct), at_once)
        answer_of = dict(zip(distinct, answers, strict=True))
        readings = [env.extractor.parse(answer_of[text].text) for text in texts]
        legal = np.array([isinstance(reading, Chain) for reading in readings])
        chains = pad_chains([r.actions if isinstance(r, Chain) else () for r in readings])
        starts, bumping = np.tile(model.non_terminal, 3), chance.with_bumps(model)
        reach, rewards = chance.play_chains(bumping, starts, chains)
        _, discounted = chance.play_chains(bumping, starts, chains, FAR_SIGHTED)
        here, refused = np.arange(len(starts)), len(starts) * 2 // 3
        # (M, M) probabilities of the texts after, where the episode goes on
        self._transition = np.zeros((len(starts),) * 2)
        self._transition[:, :refused] = reach[:, bumping.non_terminal]
        self._transition[~legal] = 0.0
        self._transition[here, refused + here % len(model.non_terminal)] += ~legal
        beside = np.where(legal, 0.0, env.invalid_penalty) - env.chain_cost
        self.goal, self.gains = reach @ bumping.goal, rewards + beside
        # Discounted, a refusal is as bad as the worst action.
        worst = min(env.invalid_penalty, float(model.reward.min()))
        self._discounted_gains = discounted + np.where(legal, 0.0, worst) - env.chain_cost
        self._discounts = FAR_SIGHTED ** np.maximum(1, (chains >= 0).sum(axis=1))

    def within(self, num_chains: int, gains: np.ndarray) -> np.ndarray:
        """Expected sum (N,) of gains (M,) in so many completions, from each state."""
        values = np.zeros(len(gains))
        for _ in range(num_chains):
            values = gains + self._transition @ values
        return values[: len(values) // 3]

    def discounted(self) -> np.ndarray:
        """Expected discounted sum (N,) of all that is earned."""
        system = np.eye(len(self.gains)) - self._discounts[:, None] * self._transition
        return np.linalg.solve(system, self._discounted_gains)[: len(self.gains) // 3]


def greedy_share(env: LanguageEnv, read: Callable[[], Sequence[Trajectory]]) -> dict[str, float]:
    """`expected_value`, `optimum_value` and `of_optimum` of greedy episodes without dice.

    As in `expected_figures`, over practised starts. Nothing where the shortest path to the goal is
    best, so that other figures say how good a player is: then the episodes are not even `read`.
    """
    if env.view.model is None or env.view.states is None:
        return {}
    model = tabular_model(env.env, env.view)
    if not exact.goes_by_reward(model):
        return {}
    longest, cost = env.grammar.max_chain_length, env.chain_cost
    best = chance.best_values(model, longest, FAR_SIGHTED, chain_cost=cost)
    played = [e for e in read() if e.infos[0]["state"] not in env.held_back]
    optimum = float(np.mean([best[model.row(e.infos[0]["state"])] for e in played]))
    value = float(np.mean([e.returns(FAR_SIGHTED)[0] for e in played]))
    return {"expected_value": value, "optimum_value": optimum, "of_optimum": _share(value, optimum)}


def _share(part: float, whole: float) -> float:
    """How much of the greatest is reached, at most 1; NaN where neither is a gain or a loss.

    Negative where there is a loss, and the greatest is a gain.
    """
    if whole <= 0:
        part, whole = whole, part
    return part / whole if whole else float("nan")
