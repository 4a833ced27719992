"""Completions that are sampled from a policy: how many are no chains, and whether it reads.

It reads where a completion tells which of several states it answers.

Samples are kept in parquet (schema version 1: one row per completion, `state` as JSON text), so
that a killed run goes on, and so that people can read what was said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from lactchain.data.episodes import sampled_states
from lactchain.data.parquet import JSON, NUMBER, TEXT, Format, stop_if_requested, work_through
from lactchain.data.rollouts import Rollouts
from lactchain.environments.extractors import Chain
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.functional.random_streams import derive_seed
from lactchain.types import Action, Policy, ask

BATCHES_PER_SHARD = 4
NUM_STATES, BATCH = 128, 16  # that are asked, and compared with each other, where a policy reads


@dataclass(frozen=True)
class Sample:
    """A completion to what a state shows when an episode begins.

    Attributes:
        state: as the environment's view gives it.
        observation: what it shows.
        action: the completion.
        is_chain: whether that is a chain.
    """

    state: State
    observation: str
    action: Action
    is_chain: bool


def _made(state: State, observation: str, completion: str, is_chain: bool, **how: Any) -> Sample:
    return Sample(state, observation, Action(completion, **how), is_chain)


def _columns_of(sample: Sample) -> dict[str, Any]:
    return vars(sample) | vars(sample.action) | {"completion": sample.action.text}


SAMPLES = Format(
    "samples",
    1,
    {
        "state": JSON,
        "observation": TEXT,
        "completion": TEXT,
        "token_ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(NUMBER),
        "stop_reason": TEXT,
        "is_chain": pa.bool_(),
    },
    _made,
    _columns_of,
)


def sample_completions(
    policy: Policy,
    rollouts: Rollouts,
    num_samples: int,
    seed: int,
    folder: str | Path | None = None,
) -> list[Sample]:
    """Completions that are spread evenly over the states that may be practised.

    The processes share them out, by files in `folder`, which are kept, also where a signal asked to
    stop (`Interrupted`). Without a folder each process samples all, and writes nothing.
    """
    states, at_once = sampled_states(rollouts.env, num_samples, seed), rollouts.num_envs
    parse = rollouts.env.extractor.parse

    def make(rows: Sequence[int], _: int = 0) -> tuple[list[Sample], dict[str, float]]:
        samples = []
        for start in range(0, len(rows), at_once):
            stop_if_requested(Path(folder or ""))
            part = rows[start : start + at_once]
            asked = [states[i] for i in part]
            texts = rollouts.observe(asked)
            actions = policy.act(texts, [derive_seed(seed, "sample", i) for i in part])
            samples += [
                Sample(state, text, action, isinstance(parse(action.text), Chain))
                for state, text, action in zip(asked, texts, actions, strict=True)
            ]
        return samples, {}

    rows = range(num_samples)
    if folder is None:
        return make(rows)[0]
    shard_size = BATCHES_PER_SHARD * at_once
    return work_through(Path(folder), rows, shard_size, make, SAMPLES, "samples")[0]


def invalid_rate(samples: Sequence[Sample]) -> float:
    """Share of completions that are no chains."""
    return sum(not sample.is_chain for sample in samples) / len(samples)


class ScoringPolicy(Policy, Protocol):
    """A policy that knows how probable any completion is."""

    def log_probs(self, observations: Sequence[str], actions: Sequence[Action]) -> np.ndarray:
        """Log-probabilities (B, C) of C different completions to B observations."""
        ...


def retrieval_figures(
    policy: ScoringPolicy,
    env: LanguageEnv,
    observations: Sequence[str],
    seed: int,
    at_once: int = NUM_STATES,
    num_states: int = NUM_STATES,
) -> dict[str, float]:
    """How often a completion is more probable to its own state than to others.

    Some `num_states` different observations are answered, and those whose completion is a chain are
    compared in batches of `BATCH`. `answered_rate`: share of the states to which it was one.
    `retrieval_accuracy`: share of the completions that are most probable behind their own prompt,
    or behind one to which the same was said. `retrieval_skill`: how much of the way from chance to
    1 that is; about 0 where a policy has stopped reading, as also where it says one thing to
    everything. Neither where fewer than two got a chain. The policy samples freely, at most
    `at_once` completions at once; observations may repeat.
    """
    distinct = list(dict.fromkeys(observations))
    order = np.random.default_rng([seed]).permutation(len(distinct))[:num_states]
    asked = [distinct[i] for i in order]
    seeds = [derive_seed(seed, "retrieval", i) for i in range(len(asked))]
    answered = [
        (text, action)
        for text, action in zip(asked, ask(policy, asked, seeds, at_once), strict=True)
        if action.stop_reason == "stop" and isinstance(env.extractor.parse(action.text), Chain)
    ]
    figures = {"answered_rate": len(answered) / len(asked)}
    if len(answered) < 2:
        return figures
    batches = (answered[start : start + BATCH] for start in range(0, len(answered), BATCH))
    found, chance = zip(*(_found(policy, batch) for batch in batches), strict=True)
    accuracy, by_chance = np.concatenate(found).mean(), np.concatenate(chance).mean()
    skill = (accuracy - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0
    return figures | {"retrieval_accuracy": float(accuracy), "retrieval_skill": float(skill)}


def _found(
    policy: ScoringPolicy, answered: Sequence[tuple[str, Action]]
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each of B completions finds a state that was answered so, and by chance (B,)."""
    texts, actions = map(list, zip(*answered, strict=True))
    distinct = {action.text: action for action in actions}
    number = {text: n for n, text in enumerate(distinct)}
    numbers = np.array([number[action.text] for action in actions])
    likeliest = policy.log_probs(texts, list(distinct.values())).argmax(axis=0)[numbers]
    same = numbers[:, None] == numbers
    return same[np.arange(len(numbers)), likeliest], same.mean(axis=1)
