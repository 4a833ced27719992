"""Recorded transitions from other libraries' files: HDF5 in d3rlpy's layout, Minari data sets.

Successors are made where episodes are known, once: a row's successor is the next row of the same
episode, or what was observed after the last step. A last step that was cut by a time limit, and
whose successor nobody recorded, is dropped and counted: pairing it with the next episode's start
would teach nonsense, and calling it terminal would be untrue.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.baselines.transitions import TransitionData
from lactchain.errors import DataError
from lactchain_extras.exchange.minari_files import minari_episodes

MOST_UNPACKED = 2**28  # bytes
D4RL_KEYS = ("timeouts", "next_observations")
H5_KEYS = ("observations", "actions", "rewards", "terminals", "episode_terminals")

log = logging.getLogger(__name__)


def read(path: str | Path) -> TransitionData:
    """Transitions of an HDF5 file, or of the folder of a Minari data set."""
    path = Path(path)
    return read_minari_transitions(path) if path.is_dir() else read_h5_transitions(path)


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of T steps as other libraries store it: actions (T, …), rewards (T,).

    Observations are (T + 1, …), or (T, …) where the last one was not recorded; `terminated` says
    that the last state is terminal.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool


def from_episodes(episodes: Iterable[RecordedEpisode], source: str = "episodes") -> TransitionData:
    """Transitions of episodes, none of which reaches into the next; errors name the `source`.

    Raises:
        DataError: an episode's lengths do not fit together, or there is no transition.
    """
    parts, num_dropped = [], 0
    for number, episode in enumerate(episodes):
        for name in ("observations", "actions", "rewards"):
            column = getattr(episode, name)
            if column.dtype.kind not in "biuf" or not column.ndim:
                raise DataError(
                    f"{source}: episode {number}: expected {name} that are one array of numbers "
                    "(of a space of parts, such as Dict or Tuple, write one part alone)"
                )
        steps = len(episode.rewards)
        if len(episode.actions) != steps or len(episode.observations) - steps not in (0, 1):
            raise DataError(
                f"{source}: episode {number} has {len(episode.observations)} observations, "
                f"{len(episode.actions)} actions and {steps} rewards"
            )
        known = len(episode.observations) == steps + 1
        kept = steps if known or episode.terminated else steps - 1
        num_dropped += steps - kept
        after = episode.observations[1 : kept + 1]
        if len(after) < kept:  # a terminal state that was not recorded; its value is never asked
            after = np.concatenate([after, episode.observations[-1:]])
        terminated = np.zeros(kept, dtype=bool)
        terminated[-1:] = episode.terminated
        with np.errstate(over="ignore"):  # what is infinite then is refused below
            rewards = np.asarray(episode.rewards[:kept], np.float32)
        before, actions = episode.observations[:kept], episode.actions[:kept]
        parts.append((before, actions, rewards, terminated, after))
    if not any(len(rewards) for _, _, rewards, _, _ in parts):
        raise DataError(f"{source}: expected episodes with transitions, found none")
    if num_dropped:
        log.info("%s: %d last steps are dropped, nobody saw what followed", source, num_dropped)
    try:
        return TransitionData(*map(np.concatenate, zip(*parts, strict=True)))
    except (DataError, ValueError) as error:
        raise DataError(f"{source}: {error}") from error


def read_h5_transitions(path: str | Path) -> TransitionData:
    """A file in d3rlpy's layout: one row a step, episodes one after another.

    `terminals` says that the environment ended the episode, `episode_terminals` (of d3rlpy 1) or
    `timeouts` (of D4RL) that it ended in any way. d3rlpy 2 keeps episodes apart. The state after a
    cut was not recorded, but in D4RL's `next_observations`, so the last step of a cut episode is
    dropped.

    Raises:
        DataError: a key is missing, columns differ in length, or the layout is that of d3rlpy 0
            (whose rewards belong to the step before) or 2.0.
        ImportError: h5py is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError("reading HDF5 needs h5py: pip install 'lactchain[h5]'") from error
    if not Path(path).is_file():
        raise DataError(f"{path}: no such file")
    try:
        with h5py.File(path, "r") as file:
            if "columns" in file:
                return from_episodes(_episodes_of_d3rlpy_2(file, str(path)), str(path))
            if "discrete_action" in file and "version" not in file:
                raise DataError(
                    f"{path}: written by d3rlpy 0, whose rewards belong to the step before; load it"
                    " by d3rlpy 1 and dump it again"
                )
            keys = (key for key in (*H5_KEYS, *D4RL_KEYS) if key in file)
            columns = {key: _array(file, key, path) for key in keys}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: expected an HDF5 file in d3rlpy's layout, {error}") from error
    if "timeouts" in columns and "episode_terminals" not in columns:
        columns["episode_terminals"] = columns["timeouts"]
    return from_columns(columns, str(path))


def _array(file: Mapping[str, Any], name: str, source: str | Path) -> np.ndarray:
    """An array of a file of anybody: of the file itself, and not much larger than that is.

    Raises:
        DataError: its bytes lie in another file, or it unpacks to a thousand times the size.
    """
    held = file[name]
    if getattr(held, "external", None) or getattr(held, "is_virtual", False):
        raise DataError(f"{source}: {name}: expected its numbers here, got the name of a file")
    if getattr(held, "nbytes", 0) > max(MOST_UNPACKED, 1000 * Path(source).stat().st_size):
        raise DataError(f"{source}: {name}: expected an array that fits, got {held.nbytes:,} bytes")
    return np.asarray(held[()])


def _flat(array: np.ndarray, name: str, source: str) -> np.ndarray:
    """N numbers, which may be stored as (N, 1)."""
    if array.ndim not in (1, 2) or array.size != len(array) or array.dtype.kind not in "biuf":
        got = f"{array.dtype} of shape {array.shape}"
        raise DataError(f"{source}: {name}: expected a number a step, got {got}")
    return array.ravel()


def _flags(array: np.ndarray, name: str, source: str) -> np.ndarray:
    """N truth values, which may be stored as 0 and 1; neither texts nor NaN are any."""
    numbers = _flat(array, name, source)
    if not np.isin(numbers, (0, 1)).all():
        raise DataError(f"{source}: {name}: expected true or false, or 0 and 1, got other numbers")
    return numbers.astype(bool)


def _episodes_of_d3rlpy_2(file: Mapping[str, Any], source: str) -> Iterator[RecordedEpisode]:
    if "num_episodes" not in file:
        raise DataError(
            f"{source}: written by d3rlpy 2.0; load it by a later one and dump it again"
        )
    for number in range(int(file["num_episodes"][()])):
        if f"observations_{number}" not in file:
            raise DataError(f"{source}: episode {number}: expected one array of observations")
        names = (f"{name}_{number}" for name in ("observations", "actions", "rewards"))
        observations, actions, rewards = (_array(file, name, source) for name in names)
        ended = np.atleast_1d(_array(file, f"terminated_{number}", source))
        [terminated] = _flags(ended, f"terminated_{number}", source)
        rewards = _flat(rewards, f"rewards_{number}", source)
        yield RecordedEpisode(observations, _discrete(actions, source), rewards, bool(terminated))


def _discrete(actions: np.ndarray, source: str) -> np.ndarray:
    """Numbers of actions as (N,), which d3rlpy stores as that or as (N, 1); others as they are."""
    if actions.dtype.kind not in "iu":
        return actions
    flat = _flat(actions, "actions", source)
    if flat.max(initial=0) > np.iinfo(np.int64).max:
        raise DataError(f"{source}: actions: expected numbers of actions, got {flat.max()}")
    return flat.astype(np.int64)


def from_columns(columns: dict[str, np.ndarray], source: str) -> TransitionData:
    """Transitions of columns in d3rlpy's layout; see `read_h5_transitions`."""
    missing = [key for key in H5_KEYS if key not in columns]
    if missing:
        raise DataError(f"{source}: no {', '.join(missing)}; expected {', '.join(H5_KEYS)}")
    if scalars := [key for key, column in columns.items() if not np.ndim(column)]:
        raise DataError(f"{source}: {scalars[0]}: expected an array, got a single value")
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{source}: expected columns of one length, got {lengths}")
    terminals = _flags(columns["terminals"], "terminals", source)
    ends = _flags(columns["episode_terminals"], "episode_terminals", source) | terminals
    ends[-1:] = True  # a last episode that recording cut
    rewards = _flat(columns["rewards"], "rewards", source)
    actions = _discrete(columns["actions"], source)
    seen, after = columns["observations"], columns.get("next_observations")
    if after is not None and after.shape != seen.shape:
        raise DataError(
            f"{source}: next_observations: expected shape {seen.shape}, got {after.shape}"
        )

    def episode(start: int, stop: int) -> RecordedEpisode:
        last = [] if after is None else [after[stop - 1 : stop]]
        observations = np.concatenate([seen[start:stop], *last])
        ended = bool(terminals[stop - 1])
        return RecordedEpisode(observations, actions[start:stop], rewards[start:stop], ended)

    cuts = (0, *(np.flatnonzero(ends) + 1))
    return from_episodes((episode(*cut) for cut in pairwise(cuts)), source)


def read_minari_transitions(path: str | Path) -> TransitionData:
    """A Minari data set from its folder, such as ~/.minari/datasets/D4RL/door/human-v2.

    Minari records the state after the last step, so nothing is dropped.

    Raises:
        DataError: the folder holds no Minari data set of arrays.
        ImportError: minari is not installed.
    """
    episodes = (
        RecordedEpisode(
            *map(np.asarray, (e.observations, e.actions, e.rewards)), bool(any(e.terminations[-1:]))
        )
        for _, e, _ in minari_episodes(path)
    )
    return from_episodes(episodes, str(path))
