"""Values in all states of a world: a policy's true ones beside a critic's, and a value model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lactchain.data import parquet
from lactchain.data.evaluations import CompletionValues, StateValues
from lactchain.data.shards import work_through
from lactchain.environments.exact import MAX_CHAINS, pad_chains, policy_values
from lactchain.environments.language import LanguageEnv
from lactchain.types import Critic, Policy

if TYPE_CHECKING:
    from lactchain.models.actor import LanguageActor

MAX_VALUES = 20_000
KIND, VERSION = "chain_probabilities", 1

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
    return known and env.grammar.num_completions <= MAX_CHAINS


def exact_policy(actor: LanguageActor, env: LanguageEnv, folder: Path) -> ExactPolicy:
    """The policy of an actor under constrained decoding, from enumerating every legal completion.

    The processes share the states out, by files in a folder that all of them see; those of a killed
    run, and of an `Interrupted` one, are kept.
    """
    observations = [env.reset(options={"state": state})[0] for state in env.view_states()]

    def make(shard: int) -> tuple[np.ndarray, dict[str, float]]:
        first = shard * STATES_PER_SHARD
        return actor.enumerate(observations[first : first + STATES_PER_SHARD])[1], {}

    num_shards = -(-len(observations) // STATES_PER_SHARD)
    rows, _ = work_through(folder, num_shards, make, _write, _read, "exact values")
    completions, _ = actor.enumerate([])
    chains = pad_chains([env.extractor.parse(completion).actions for completion in completions])
    return ExactPolicy(chains, np.array(rows))


def critic_against_exact(critic: Critic, policy: ExactPolicy, env: LanguageEnv) -> StateValues:
    """V(s) by the critic beside V^π(s), from solving the linear system, in all states.

    The state must be all that the observation says: no text about what happened before.
    """
    states = env.view_states()
    observations = [env.reset(options={"state": state})[0] for state in states]
    exact = policy_values(
        env.view.model(env.env),
        policy.chains,
        policy.probabilities,
        critic.gamma,
        critic.discount_per,
        env.invalid_penalty,
        env.chain_cost,
    )
    return StateValues(
        states=tuple(states),
        critic=tuple(map(float, critic.values(observations))),
        exact=tuple(map(float, np.asarray(exact))),
        gamma=critic.gamma,
        discount_per=critic.discount_per,
    )


def estimate_completion_values(policy: Policy, env: LanguageEnv) -> CompletionValues | None:
    """V(s) and the advantage of each completion, by the values that a policy ranks with.

    None where there is no such ranking, where the view does not list states or their texts depend
    on what happened before, or where there would be more than `MAX_VALUES` of them.
    """
    ranking = getattr(policy, "ranking", None)
    if ranking is None or env.view.states is None or env.history != 1:
        return None
    states = env.view_states()
    if len(states) * len(ranking.actions) > MAX_VALUES:
        return None
    texts = [env.reset(options={"state": state})[0] for state in states]
    return CompletionValues(
        states=tuple(states),
        completions=tuple(action.text for action in ranking.actions),
        values=tuple(ranking.state_values(texts).tolist()),
        advantages=tuple(map(tuple, ranking.advantages(texts).tolist())),
    )


def _write(path: Path, rows: Sequence[Sequence[float]], facts: Mapping[str, Any]) -> None:
    table = pa.table({"probabilities": parquet.number_lists(rows, pa.float64())})
    parquet.write_table(path, table, KIND, VERSION, facts)


def _read(path: Path) -> list[tuple[float, ...]]:
    table = parquet.read_table(path, KIND, VERSION)
    with parquet.rows_of(path, KIND):
        return parquet.to_python(table["probabilities"])
