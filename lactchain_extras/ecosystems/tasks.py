"""Every start of a world by a number, so that several players of one number begin alike."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from lactchain.config.settings import EnvironmentConfig
from lactchain.data.episodes import all_episodes
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, lists_states
from lactchain.errors import ConfigError


class Task(NamedTuple):
    """Where an episode begins, and the seed of its dice."""

    state: State
    seed: int


Splits = Mapping[str, list[Task]]


def splits_of(
    env: LanguageEnv, config: EnvironmentConfig | None = None, panel: str | None = None
) -> Splits:
    """The tasks of each split, by their numbers: `train`, and what is held back as `test`.

    Their numbers are their seeds. Without a view that lists states there are no splits, and a
    number is a seed and no more.

    Args:
        panel: a file of `lactchain_extras.panels`, whose tasks are the only split, `test`, under
            the dice of an evaluation; then `config` has to be that of the environment.

    Raises:
        ConfigError, DataError: the panel is of other rules or was changed.
    """
    if panel is not None:
        from lactchain_extras.panels import starts

        states, seed = starts(panel, config)
        begun = all_episodes(env, seed, starts=states)
        return {"test": [Task(episode.state, episode.seed) for episode in begun]}
    if not lists_states(env):
        return {}
    parts: dict[str, list[Task]] = {"train": [], "test": []}
    for state in env.start_states():
        part = parts["test" if state in env.held_back else "train"]
        part.append(Task(state, len(part)))
    return {name: part for name, part in parts.items() if part}


def begin(
    env: LanguageEnv,
    splits: Splits,
    number: int,
    split: str | None = None,
    seed: int | None = None,
) -> tuple[str, dict[str, Any]]:
    """What `reset` returns at the start of that number.

    Args:
        splits: of `splits_of`; where there are none, each number is a seed of `train`.
        split: None: the first one.
        seed: of all dice; None: the task's own.

    Raises:
        ConfigError: there is no such split, or no such number in it.
    """
    known = [*splits] or ["train"]
    split = known[0] if split is None else split
    if split not in known:
        raise ConfigError(f"split: expected one of {sorted(known)}, got {split!r}")
    if not splits:
        return env.reset(seed=number if seed is None else seed)
    if not 0 <= number < len(splits[split]):
        raise ConfigError(f"task: expected 0 to {len(splits[split]) - 1} of {split}, got {number}")
    task = splits[split][number]
    options = {"state": task.state}
    return env.reset(seed=task.seed if seed is None else seed, options=options)
