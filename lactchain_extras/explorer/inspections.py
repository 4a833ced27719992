"""What runs leave for people to look at: answers and candidates of a round, values of tokens.

A folder RUN/round_N/inspection (N = 0: before the first round) holds two tables in parquet (schema
version 1), `ANSWERS` and `CANDIDATES`, `meta.json`, and a manifest. Numbers that are not known are
null: values of a round without a critic, exact ones where there is no exact model. A folder
RUN/token_values holds in the same way what a value model makes of a few episodes' tokens:
`DECISIONS`. Half a surrogate pair, which no such table can hold, stands as its number.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lactchain.data import parquet
from lactchain.errors import DataError
from lactchain.inspection.run_view import RunView, round_of
from lactchain.storage.files import read_json
from lactchain.storage.manifests import verify_manifest

VERSION = 1
log = logging.getLogger(__name__)
_TEXTS, _NUMBERS = pa.list_(pa.string()), pa.list_(pa.float64())

ANSWERS = pa.schema({
    "state_id": pa.int64(),  # its number among all start states, the same in all rounds
    "state": pa.string(),  # as the environment's view gives it, as JSON text
    "text": pa.string(),  # what it shows when an episode begins
    "completion": pa.string(),  # the actor's greedy one
    "tokens": _TEXTS,
    "probabilities": _NUMBERS,  # of these tokens
    "actions": _TEXTS,  # what was played of it
    "rewards": _NUMBERS,  # what each action earned
    "invalid": pa.bool_(),  # whether it is no chain
    "next_state": pa.string(),  # where it led, as JSON text; null if the episode was over
    "terminated": pa.bool_(),  # whether it ended the episode
    "success": pa.bool_(),  # of the greedy episode from there, as the next two are
    "num_actions": pa.int64(),
    "return": pa.float64(),  # not discounted
    "value": pa.float64(),  # V(s) by the round's critic
    "q": pa.float64(),  # r + γ^k V(next state) by it, as pairs are ranked, or its Q(s, completion)
    "advantage": pa.float64(),  # q − value
    "optimal": pa.float64(),  # V*(s), the greatest of any policy of chains
    "policy_value": pa.float64(),  # V^π(s) of the policy whose episodes the critic has learnt from
    "shortest": pa.int64(),  # fewest actions from there to the goal
})  # fmt: skip
"""A row is a start state."""
CANDIDATES = pa.schema({
    "state_id": pa.int64(),  # as above, like the next three
    "completion": pa.string(),
    "tokens": _TEXTS,
    "probabilities": _NUMBERS,  # none of what was not sampled
    "probability": pa.float64(),  # of the whole completion; null of what was not sampled
    "count": pa.int64(),  # how often it was sampled
    "reward": pa.float64(),  # what it earned, not discounted
    "score": pa.float64(),  # as q above
    "invalid": pa.bool_(),  # whether it is no chain
    "chosen": pa.bool_(),  # whether it is that in some pair of the round
    "rejected": pa.bool_(),
})  # fmt: skip
"""A row is one of several completions to one of these states: those that the evaluation sampled
from the actor, freely at temperature 1, the most probable first; and those of the round's pairs
that were asked the same text, by the actor before it learnt from them."""
DECISIONS = pa.schema({
    "episode": pa.int64(),  # its place among the episodes that were read or played
    "chosen": pa.string(),  # why it is here: "best" or "worst" by its return, or "first" of others
    "return": pa.float64(),  # of the episode, not discounted
    "decision": pa.int64(),  # its place in the episode
    "state": pa.string(),  # as JSON text; null where that is not known
    "prompt": pa.string(),  # what was shown
    "completion": pa.string(),  # what was said
    "tokens": _TEXTS,  # of the completion
    "q": _NUMBERS,  # of each the least Q(s, token), by the target network where there is one
    "v": _NUMBERS,  # V(s) before each
    "reward": pa.float64(),  # of the decision
})  # fmt: skip
"""A row is a decision of one of a few episodes, in their order. The advantage of a token is q − v,
as actors are guided by it."""
SCHEMAS = {"answers": ANSWERS, "candidates": CANDIDATES, "decisions": DECISIONS}


@dataclass(frozen=True)
class Inspection:
    """What a round has left to look at, or a value model.

    Attributes:
        meta: of a round `asked` start states `of` so many; whether they are `sampled`, or all; the
            `critic` that the values are by, a folder in the run where it lies there, or None; its
            `gamma` and `discount_per`. Of a value model the `method` of the values ("ilql" or "mc")
            and its `gamma` per token; how many `episodes` are here, `of` how many; and the
            `most_decisions` of each.
        answers, candidates, decisions: the tables, with the columns of `SCHEMAS`.
    """

    meta: Mapping[str, Any]
    answers: pa.Table | None = None
    candidates: pa.Table | None = None
    decisions: pa.Table | None = None


def read_inspection(folder: str | Path) -> Inspection:
    """What a run has left in a folder; `DataError` where it is missing, damaged or incomplete."""
    folder, tables = Path(folder), {}
    verify_manifest(folder)
    meta = read_json(folder / "meta.json")
    for name in ("decisions",) if "method" in meta else ("answers", "candidates"):
        with parquet.rows_of(folder, "tables of this schema"):
            table = parquet.read_table(folder / f"{name}.parquet", name, VERSION)
            tables[name] = table.cast(SCHEMAS[name])
    return Inspection(meta, **tables)


def is_inspection(folder: str | Path) -> bool:
    """Whether a folder holds such tables, whole and as they were written."""
    try:
        verify_manifest(folder)
    except DataError:
        return False
    return True


def of_rounds(view: RunView) -> dict[int, Inspection]:
    """What each round of a run has recorded, by its number; a damaged record is none."""
    folders = filter(is_inspection, view.directory.glob("round_*/inspection"))
    numbers = {round_of(folder.parent.name): folder for folder in folders}
    return {n: read_inspection(numbers[n]) for n in sorted(numbers.keys() - {None})}


def token_values(view: RunView) -> Inspection | None:
    """What a value model makes of a few episodes' tokens; of a damaged record, None."""
    folder = view.directory / "token_values"
    return read_inspection(folder) if is_inspection(folder) else None


def left_out(view: RunView) -> list[str]:
    """Names of records of a run that are not whole, so that nothing of them is shown."""
    recorded = [part.directory / "token_values" for part in view.parts.values()]
    recorded += [place / "inspection" for place in view.directory.glob("round_*")]
    damaged = sorted(f for f in recorded if os.path.lexists(f) and not is_inspection(f))
    names = [str(folder.relative_to(view.directory)) for folder in damaged]
    if names:
        log.warning("%s: damaged or not whole, not shown: %s", view.name, ", ".join(names))
    return names
