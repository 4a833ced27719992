"""Recorded transitions from other libraries' files: HDF5 of d3rlpy, Minari data sets.

Successors are made where episodes are known, once: a row's successor is the next row of the same
episode, or what was observed after the last step. A last step that was cut by a time limit, and
whose successor nobody recorded, is dropped and counted: pairing it with the next episode's start
would teach nonsense, and calling it terminal would be untrue.
"""

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
                mend = "of a space of parts, such as Dict or Tuple, write one part alone"
                what = f"expected {name} that are one array of numbers ({mend})"
                raise DataError(f"{source}: episode {number}: {what}")
        steps = len(episode.rewards)
        if len(episode.actions) != steps or len(episode.observations) - steps not in (0, 1):
            lengths = f"{len(episode.observations)} observations, {len(episode.actions)} actions"
            raise DataError(f"{source}: episode {number} has {lengths} and {steps} rewards")
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
    """A file that d3rlpy has dumped, by its version 1 (as its data sets are) or from 2.1 on.

    It holds no state after a cut, so the last step of a cut episode is dropped.

    Raises:
        DataError: it is none, or of an older version; an array is missing, or of another type.
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
            if "num_episodes" in file:
                return from_episodes(_episodes_of_d3rlpy(file, str(path)), str(path))
            if "episode_terminals" in file and "version" in file:
                return from_episodes(_episodes_of_d3rlpy_1(file, str(path)), str(path))
            what = "a file of d3rlpy 1, or of 2.1 or later, found no num_episodes in it"
            mend = "load it by d3rlpy and dump it again, or take the data set from Minari"
            raise DataError(f"{path}: expected {what}; {mend}")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: expected an HDF5 file of d3rlpy, {error}") from error


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


def _episodes_of_d3rlpy(file: Mapping[str, Any], source: str) -> Iterator[RecordedEpisode]:
    for number in range(int(file["num_episodes"][()])):
        if f"observations_{number}" not in file:
            raise DataError(f"{source}: episode {number}: expected one array of observations")
        names = (f"{name}_{number}" for name in ("observations", "actions", "rewards"))
        observations, actions, rewards = (_array(file, name, source) for name in names)
        ended = np.atleast_1d(_array(file, f"terminated_{number}", source))
        [terminated] = _flat(ended, f"terminated_{number}", source)
        if terminated not in (0, 1):
            got = f"expected true or false, got {terminated}"
            raise DataError(f"{source}: terminated_{number}: {got}")
        rewards = _flat(rewards, f"rewards_{number}", source)
        yield RecordedEpisode(observations, _discrete(actions, source), rewards, bool(terminated))


def _episodes_of_d3rlpy_1(file: Mapping[str, Any], source: str) -> Iterator[RecordedEpisode]:
    """One row a step; `episode_terminals` says that an episode ended in any way."""
    names = ("observations", "actions", "rewards", "terminals", "episode_terminals")
    columns = [_array(file, name, source) for name in names]
    if len({len(np.atleast_1d(column)) for column in columns}) > 1:
        raise DataError(f"{source}: expected columns of one length, got others")
    observations, actions, *others = columns
    rewards, terminals, ends = map(_flat, others, names[2:], [source] * 3)
    if not np.isin([terminals, ends], (0, 1)).all():
        raise DataError(f"{source}: terminals: expected true or false, got other numbers")
    actions, last = _discrete(actions, source), len(rewards)
    for start, stop in pairwise((0, *(np.flatnonzero((ends + terminals)[:-1]) + 1), last)):
        part = slice(start, stop)
        ended = bool(terminals[stop - 1])
        yield RecordedEpisode(observations[part], actions[part], rewards[part], ended)


def _discrete(actions: np.ndarray, source: str) -> np.ndarray:
    """Numbers of actions as (N,), which d3rlpy stores as that or as (N, 1); others as they are."""
    if actions.dtype.kind not in "iu":
        return actions
    flat = _flat(actions, "actions", source)
    if flat.max(initial=0) > np.iinfo(np.int64).max:
        raise DataError(f"{source}: actions: expected numbers of actions, got {flat.max()}")
    return flat.astype(np.int64)


def read_minari_transitions(path: str | Path) -> TransitionData:
    """A Minari data set from its folder, such as ~/.minari/datasets/D4RL/door/human-v2.

    Minari records the state after the last step, so nothing is dropped.

    Raises:
        DataError: the folder holds no Minari data set of arrays.
        ImportError: minari is not installed.
    """

    def episodes() -> Iterator[RecordedEpisode]:
        for _, e, _ in minari_episodes(path):
            columns = map(np.asarray, (e.observations, e.actions, e.rewards))
            yield RecordedEpisode(*columns, bool(any(e.terminations[-1:])))

    return from_episodes(episodes(), str(path))
