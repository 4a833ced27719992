"""What an evaluation leaves in a run folder: values of states, and one line per episode.

`values.json` holds the critic's value of every state beside the exact one; `completion_values.json`
what every completion to every state is worth; `episodes.json` how each start state went. All are
JSON, written whole or not at all (`DiskError`), with a manifest beside each; what is missing,
damaged, of another run or of another schema is not read (`DataError`).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lactchain.errors import DataError
from lactchain.storage.files import read_versioned_json
from lactchain.storage.manifests import verify_if_described, write_with_manifest

VERSION = 1
AGAIN = "remove it and the summary.json beside it, and give the same command"
Values = TypeVar("Values", "StateValues", "CompletionValues")
Result = TypeVar("Result")


@dataclass(frozen=True)
class StateValues:
    """Values of N states under one policy.

    Attributes:
        states: N states as the environment's view gives them (JSON objects).
        critic: N estimates V(s), in return units.
        exact: N true values V^π(s), or None where they cannot be computed.
        gamma, discount_per: the discount of both, as in `CriticConfig`.
    """

    states: tuple[Mapping[str, Any], ...]
    critic: tuple[float, ...]
    exact: tuple[float, ...] | None
    gamma: float
    discount_per: str = "action"

    def __post_init__(self) -> None:
        for name, values in (("critic", self.critic), ("exact", self.exact)):
            if values is not None and len(values) != len(self.states):
                raise ValueError(
                    f"{name}: expected a value for each of {len(self.states)} states, "
                    f"got {len(values)}"
                )

    @property
    def rmse(self) -> float:
        """Root of the mean squared error of the critic, in return units."""
        return float(np.sqrt(np.mean(np.square(self._errors))))

    @property
    def r2(self) -> float:
        """Share of the variance of the exact values that the critic explains; 1 is perfect.

        NaN where they do not vary.
        """
        variance = np.var(self.exact)
        return float(1 - np.mean(np.square(self._errors)) / variance) if variance else math.nan

    @property
    def rho(self) -> float:
        """Spearman's rank correlation of both; NaN where one of them does not vary."""
        with np.errstate(invalid="ignore"):
            return float(np.corrcoef(ranks(self.critic), ranks(self.exact))[0, 1])

    def where(self, chosen: Sequence[bool]) -> "StateValues":
        """The values of some of the states; N flags say which."""
        columns = {"states": self.states, "critic": self.critic, "exact": self.exact}
        known = {name: values for name, values in columns.items() if values is not None}
        return replace(self, **{n: tuple(compress(values, chosen)) for n, values in known.items()})

    @property
    def _errors(self) -> np.ndarray:
        return np.subtract(self.critic, self.exact)


@dataclass(frozen=True)
class CompletionValues:
    """What A completions to each of S states are worth to a value model.

    Attributes:
        states: S states as the environment's view gives them (JSON objects).
        completions: A texts, in the order of the action numbers.
        values: S values V(s), in return units.
        advantages: S rows of A advantages, Q(s, completion) − V(s).
    """

    states: tuple[Mapping[str, Any], ...]
    completions: tuple[str, ...]
    values: tuple[float, ...]
    advantages: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        shape = len(self.states), len(self.completions)
        sizes = {len(row) for row in self.advantages} or {shape[1]}
        if (len(self.values), len(self.advantages)) != (shape[0],) * 2 or sizes != {shape[1]}:
            raise ValueError(
                f"advantages: expected {shape[0]} rows of {shape[1]}, and a value each"
            )


@dataclass(frozen=True)
class EpisodeResult:
    """How an episode from one start state went.

    Attributes:
        state: the start state (a JSON object).
        success: whether it ended well; None where the world does not say what that is.
        num_chains: completions given.
        num_actions: primitive actions executed, bumps included.
        shortest: fewest primitive actions from there to the goal; None where that is unknown.
        held_back: whether the start state is one that is not practised.
    """

    state: Mapping[str, Any]
    success: bool | None
    num_chains: int
    num_actions: int
    shortest: int | None = None
    held_back: bool = False


def write_values(path: str | Path, values: StateValues | CompletionValues) -> None:
    """Writes `values.json` or `completion_values.json`."""
    _write(path, asdict(values))


def read_values(path: str | Path, kind: type[Values] = StateValues) -> Values:
    """Reads what `write_values` wrote; `kind` is the class of that."""
    return _read(path, lambda fields: kind(**{k: _as_tuple(v) for k, v in fields.items()}))


def write_episodes(path: str | Path, episodes: Sequence[EpisodeResult]) -> None:
    """Writes `episodes.json`."""
    _write(path, {"episodes": [asdict(episode) for episode in episodes]})


def read_episodes(path: str | Path) -> list[EpisodeResult]:
    """Reads what `write_episodes` wrote."""
    return _read(path, lambda fields: [EpisodeResult(**episode) for episode in fields["episodes"]])


def ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks of N values from 1; those that are equal share their mean rank."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (sizes.cumsum() - (sizes - 1) / 2)[group]


def _as_tuple(value: Any) -> Any:
    """A list as a tuple, with the lists in it; anything else as it is."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _write(path: str | Path, fields: dict[str, Any]) -> None:
    text = json.dumps({"schema_version": VERSION} | fields, allow_nan=False)
    write_with_manifest(path, text.encode(), {})


def _read(path: str | Path, make: Callable[[dict[str, Any]], Result]) -> Result:
    verify_if_described(path, AGAIN)
    fields = read_versioned_json(path, VERSION)
    try:
        return make(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not of schema version {VERSION} ({error})") from error
