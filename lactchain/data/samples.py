"""Completions that are sampled from a policy in the states of a world, and how many are no chains.

They are kept in parquet (schema version 1: one row per completion, `state` as JSON text), so that a
killed run goes on, and so that people can read what was said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lactchain.data import parquet
from lactchain.data.episodes import sampled_states
from lactchain.data.rollouts import Rollouts
from lactchain.data.shards import stop_if_requested, work_through
from lactchain.environments.extractors import Chain
from lactchain.environments.views import State
from lactchain.functional.random_streams import derive_seed
from lactchain.types import Action, Policy

KIND, VERSION = "samples", 1
BATCHES_PER_SHARD = 4


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


def sample_completions(
    policy: Policy,
    rollouts: Rollouts,
    num_samples: int,
    seed: int,
    folder: str | Path | None = None,
) -> list[Sample]:
    """Completions that are spread evenly over the states that may be practised.

    Args:
        folder: of the files, which the processes share out, and a killed run keeps; without one
            there are no files, and each process samples all.

    Raises:
        Interrupted: a signal asked to stop; finished files are kept.
    """
    states = sampled_states(rollouts.env, num_samples, seed)
    shard_size = BATCHES_PER_SHARD * rollouts.num_envs

    def make(rows: range) -> list[Sample]:
        part = [states[i] for i in rows]
        seeds = [derive_seed(seed, "sample", i) for i in rows]
        return _sample(policy, rollouts, part, seeds, Path(folder or ""))

    if folder is None:
        return make(range(num_samples))
    shards = [
        range(start, min(start + shard_size, num_samples))
        for start in range(0, num_samples, shard_size)
    ]
    found, _ = work_through(
        Path(folder),
        len(shards),
        lambda number: (make(shards[number]), {}),
        write_samples,
        read_samples,
        "samples",
    )
    return found


def invalid_rate(samples: Sequence[Sample]) -> float:
    """Share of completions that are no chains."""
    return sum(not sample.is_chain for sample in samples) / len(samples)


def write_samples(
    path: str | Path, samples: Sequence[Sample], facts: Mapping[str, Any] | None = None
) -> None:
    """Writes samples to one parquet file, and its manifest; `DiskError` where that fails."""
    actions = [sample.action for sample in samples]
    table = pa.table({
        "state": parquet.text_column([json.dumps(sample.state) for sample in samples]),
        "observation": parquet.text_column([sample.observation for sample in samples]),
        "completion": parquet.text_column([action.text for action in actions]),
        "token_ids": parquet.number_lists([action.token_ids for action in actions], pa.int32()),
        "logprobs": parquet.number_lists([action.logprobs for action in actions], pa.float64()),
        "stop_reason": parquet.text_column([action.stop_reason for action in actions]),
        "is_chain": pa.array([sample.is_chain for sample in samples], pa.bool_()),
    })  # fmt: skip
    parquet.write_table(path, table, KIND, VERSION, facts)


def read_samples(path: str | Path) -> list[Sample]:
    """Reads the samples of a file, or of every `*.parquet` of a folder by name, verbatim.

    Raises:
        DataError: a file is missing, damaged or of another schema.
    """
    table = parquet.read_table(path, KIND, VERSION)
    with parquet.rows_of(path, KIND):
        columns = [parquet.to_python(table[name]) for name in table.column_names]
        states = {text: json.loads(text) for text in dict.fromkeys(columns[0])}
        return [
            Sample(states[state], observation, Action(*action), is_chain)
            for state, observation, *action, is_chain in zip(*columns, strict=True)
        ]


def _sample(
    policy: Policy,
    rollouts: Rollouts,
    states: Sequence[State],
    seeds: Sequence[int],
    folder: Path,
) -> list[Sample]:
    """A completion to each state, as many at once as episodes are played."""
    env, samples = rollouts.env, []
    for start in range(0, len(states), rollouts.num_envs):
        stop_if_requested(folder)
        part = slice(start, start + rollouts.num_envs)
        texts = rollouts.observe(states[part])
        samples += [
            Sample(state, text, action, isinstance(env.extractor.parse(action.text), Chain))
            for state, text, action in zip(
                states[part], texts, policy.act(texts, seeds[part]), strict=True
            )
        ]
    return samples
