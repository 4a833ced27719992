"""Every start of a world by a number, so that several players of one number begin alike."""

from collections.abc import Mapping
from typing import Any

from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, lists_states
from lactchain.errors import ConfigError


def task_states(env: LanguageEnv) -> dict[str, list[State]]:
    """The start states of each split, by their numbers: `train`, and what is held back as `test`.

    Without a view that lists states there are no splits, and a number is a seed and no more.
    """
    if not lists_states(env):
        return {}
    starts = env.start_states()
    held_back = [state for state in starts if state in env.held_back]
    splits = {"train": [state for state in starts if state not in env.held_back]}
    return splits | ({"test": held_back} if held_back else {})


def begin(
    env: LanguageEnv,
    splits: Mapping[str, list[State]],
    task: int,
    split: str = "train",
    seed: int | None = None,
) -> tuple[str, dict[str, Any]]:
    """What `reset` returns at the start of that number.

    Args:
        splits: of `task_states`; where there are none, each number is a seed of `train`.
        seed: of all dice; None: the number.

    Raises:
        ConfigError: there is no such split, or no such number in it.
    """
    seed, known = task if seed is None else seed, sorted(splits) or ["train"]
    if split not in known:
        raise ConfigError(f"split: expected one of {known}, got {split!r}")
    if not splits:
        return env.reset(seed=seed)
    if not 0 <= task < len(splits[split]):
        raise ConfigError(f"task: expected 0 to {len(splits[split]) - 1} of {split}, got {task}")
    return env.reset(seed=seed, options={"state": splits[split][task]})
