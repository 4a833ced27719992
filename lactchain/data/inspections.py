"""What runs leave for people to look at: answers and candidates of a round, values of tokens.

A folder RUN/round_N/inspection (N = 0: before the first round) holds two tables in parquet (schema
version 1), `meta.json`, and a manifest. A row of `answers.parquet` is a start state:

    state_id: its number among all start states, the same in all rounds
    state: as the environment's view gives it, as JSON text
    text: what it shows when an episode begins
    completion: the actor's greedy completion, with its tokens and their probabilities
    actions, rewards: what was played of it, and what each action earned
    invalid: whether it is no chain
    next_state: where it led, as JSON text; null if the episode was over
    terminated: whether it ended the episode
    success, num_actions, return: of the greedy episode from there; the return is not discounted
    value: V(s) by the round's critic
    q: r + γ^k V(next state) of the completion by that critic, as pairs are ranked, or its Q(s, c)
    advantage: q − value
    optimal: V*(s), the greatest of any policy of chains
    policy_value: V^π(s) of the policy whose episodes the round's critic has learnt from
    shortest: fewest actions from there to the goal

A row of `candidates.parquet` is one of several completions to one of these states: those that the
evaluation sampled from the actor, freely at temperature 1, the most probable first; and those of
the round's pairs that were asked the same text, by the actor before it learnt from them:

    state_id, completion, tokens, probabilities: as above; no probabilities of what was not sampled
    probability: of the whole completion; null of what was not sampled
    count: how often it was sampled
    reward: what it earned, not discounted
    score: as q above
    invalid: whether it is no chain
    chosen, rejected: whether it is the one or the other in some pair of the round

Numbers that are not known are null: values of a round without a critic, exact ones where there is
no exact model.

A folder RUN/token_values holds in the same way what a value model makes of a few episodes' tokens.
A row of `decisions.parquet` is a decision of one of these episodes, in their order:

    episode: its place among the episodes that were read or played
    chosen: why it is here: "best" or "worst" by its return, or "first" of the others
    return: of the episode, not discounted
    decision: its place in the episode
    state: as the environment's view gives it, as JSON text; null where that is not known
    prompt, completion: what was shown, and what was said
    tokens: of the completion, as texts
    q: of each token the least Q(s, token), by the target network where there is one
    v: V(s) before each token
    reward: of the decision

The advantage of a token is q − v, as actors are guided by it. Half a surrogate pair, which no such
table can hold, stands as its number. Add-ons write all of this (`recorder` and `token_values`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lactchain.data import parquet
from lactchain.errors import DataError
from lactchain.storage.files import read_json
from lactchain.storage.manifests import verify_manifest

VERSION = 1
_TEXTS, _NUMBERS = pa.list_(pa.string()), pa.list_(pa.float64())

ANSWERS = pa.schema({
    "state_id": pa.int64(),
    "state": pa.string(),
    "text": pa.string(),
    "completion": pa.string(),
    "tokens": _TEXTS,
    "probabilities": _NUMBERS,
    "actions": _TEXTS,
    "rewards": _NUMBERS,
    "invalid": pa.bool_(),
    "next_state": pa.string(),
    "terminated": pa.bool_(),
    "success": pa.bool_(),
    "num_actions": pa.int64(),
    "return": pa.float64(),
    "value": pa.float64(),
    "q": pa.float64(),
    "advantage": pa.float64(),
    "optimal": pa.float64(),
    "policy_value": pa.float64(),
    "shortest": pa.int64(),
})  # fmt: skip
CANDIDATES = pa.schema({
    "state_id": pa.int64(),
    "completion": pa.string(),
    "tokens": _TEXTS,
    "probabilities": _NUMBERS,
    "probability": pa.float64(),
    "count": pa.int64(),
    "reward": pa.float64(),
    "score": pa.float64(),
    "invalid": pa.bool_(),
    "chosen": pa.bool_(),
    "rejected": pa.bool_(),
})  # fmt: skip
DECISIONS = pa.schema({
    "episode": pa.int64(),
    "chosen": pa.string(),
    "return": pa.float64(),
    "decision": pa.int64(),
    "state": pa.string(),
    "prompt": pa.string(),
    "completion": pa.string(),
    "tokens": _TEXTS,
    "q": _NUMBERS,
    "v": _NUMBERS,
    "reward": pa.float64(),
})  # fmt: skip
SCHEMAS = {"answers": ANSWERS, "candidates": CANDIDATES, "decisions": DECISIONS}


@dataclass(frozen=True)
class Inspection:
    """What a round has left to look at.

    Attributes:
        meta: `asked` start states `of` so many; whether they are `sampled`, or all; the `critic`
            that the values are by, a folder in the run where it lies there, or None; its `gamma`
            and `discount_per`.
        answers, candidates: the tables, with the columns of `ANSWERS` and `CANDIDATES`.
    """

    meta: Mapping[str, Any]
    answers: pa.Table
    candidates: pa.Table


@dataclass(frozen=True)
class ValuedTokens:
    """The values of tokens along a few episodes.

    Attributes:
        meta: the `method` of the values ("ilql" or "mc") and its `gamma` per token; how many
            `episodes` are here, `of` how many; and the `most_decisions` of each.
        decisions: the table, with the columns of `DECISIONS`.
    """

    meta: Mapping[str, Any]
    decisions: pa.Table


def read_inspection(folder: str | Path) -> Inspection:
    """What a round has left; `DataError` where it is missing, damaged or not complete."""
    return Inspection(*_read(folder, "answers", "candidates"))


def read_valued_tokens(folder: str | Path) -> ValuedTokens:
    """What a value model has left; `DataError` as above."""
    return ValuedTokens(*_read(folder, "decisions"))


def _read(folder: str | Path, *names: str) -> Iterator[Any]:
    """The meta data, and the tables of some names."""
    folder = Path(folder)
    verify_manifest(folder)
    yield read_json(folder / "meta.json")
    for name in names:
        with parquet.rows_of(folder, "tables of this schema"):
            table = parquet.read_table(folder / f"{name}.parquet", name, VERSION)
            found = table.cast(SCHEMAS[name])
        yield found


def is_inspection(folder: str | Path) -> bool:
    """Whether a folder holds such tables, whole and as they were written."""
    try:
        verify_manifest(folder)
    except DataError:
        return False
    return True
