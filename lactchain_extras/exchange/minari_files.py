"""Data sets of Minari, read by Minari: episodes of text, and for classic agents of any kind."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Text

from lactchain.errors import DataError
from lactchain.types import Action, Trajectory


def read_minari(path: str | Path) -> list[Trajectory]:
    """Reads a data set of text from its own folder.

    Each utterance counts as one executed action, and nothing is known of success.

    Raises:
        DataError: the folder holds no data set that Minari reads, or none of text.
    """
    trajectories = []
    for data, episode, seed in minari_episodes(path):
        for name in ("observation_space", "action_space"):
            space = getattr(data, name)
            if not isinstance(space, Text):
                raise DataError(f"{path}: {name}: expected a Text space, got {space}")
        try:
            trajectories.append(_trajectory(episode, seed, data))
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: episode {episode.id}: {error}") from error
    return trajectories


def minari_episodes(path: str | Path) -> Iterator[tuple[Any, Any, Any]]:
    """The data set of a folder, such as ~/.minari/datasets/maze/text-v0, with each of its episodes.

    Yields:
        The data set, an episode, and the seed of this, or what stands in its place.

    Raises:
        DataError: the folder holds no data set that Minari reads.
        ImportError: minari is not installed.
    """
    try:
        from minari import MinariDataset
    except ImportError as error:
        needed = "reading Minari data needs minari: pip install 'lactchain[minari]'"
        raise ImportError(needed) from error
    folder = Path(path) / "data"
    if not folder.is_dir():
        raise DataError(f"{path}: expected the folder of a Minari data set, found no data/ in it")
    try:
        data = MinariDataset(folder)
        known = data.storage.get_episode_metadata(range(data.total_episodes))
        for episode, about in zip(data.iterate_episodes(), known, strict=True):
            yield data, episode, about.get("seed")
    except Exception as error:  # noqa: BLE001  - Minari's own errors are of every kind (0.5)
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: expected a Minari data set that can be read, {what}") from error


def _trajectory(episode: Any, seed: Any, data: Any) -> Trajectory:
    """An episode of text; what is of another type than its column is refused."""
    observations, actions = tuple(episode.observations), tuple(episode.actions)
    for name, texts in (("observations", observations), ("actions", actions)):
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{name}: expected texts, got {texts}")
    rewards = np.asarray(episode.rewards)
    ends = [np.asarray(e) for e in (episode.terminations, episode.truncations)]
    if rewards.dtype.kind not in "iuf" or any(end.dtype.kind != "b" for end in ends):
        raise TypeError("expected rewards of numbers, and terminations and truncations of bools")
    if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
        raise TypeError(f"seed: expected a whole number from 0 on, got {seed!r}")
    return Trajectory(
        env_id=data.id if data.env_spec is None else data.env_spec.id,
        seed=int(seed or 0),
        observations=observations,
        actions=tuple(map(Action, actions)),
        rewards=tuple(rewards.tolist()),
        infos=plain_infos(actions, rewards.tolist(), None),
        terminated=bool(ends[0].any()),
        truncated=bool(ends[1].any()),
        policy="",
    )


def plain_infos(
    completions: Sequence[str], rewards: Sequence[float], success: bool | None
) -> tuple[dict[str, Any], ...]:
    """The T + 1 infos of an episode of which nobody kept more than T completions and rewards.

    Each completion counts as one executed action; `success` is None where nobody said.
    """
    nothing = {"executed": [], "rewards": [], "bumped": [], "positions": [], "state": None}
    not_yet = None if success is None else False
    nothing |= {"invalid_action": False, "invalid_reason": None, "success": not_yet}
    both = zip(completions, rewards, strict=False)
    played = [nothing | {"executed": [c], "rewards": [r], "bumped": [False]} for c, r in both]
    *before, last = nothing, *played
    return *before, last | {"success": success}
