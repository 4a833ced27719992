"""Every start of a world by a number, and what a world that is served says of itself.

Several players of one number begin alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from lactchain.config.settings import EnvironmentConfig
from lactchain.data.episodes import all_episodes
from lactchain.environments.chance import within_chains
from lactchain.environments.exact import MAX_CHAINS
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, lists_states, tabular_model
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
    env: LanguageEnv, splits: Splits, number: int, split: str | None = None, seed: int | None = None
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


def manifest(
    config: EnvironmentConfig, env: LanguageEnv, splits: Splits | None = None
) -> dict[str, Any]:
    """What JSON can hold of a world; `env` is one of that configuration, `splits` are its tasks.

    - `id`, `kwargs`, `extractor`, `max_chains`, `history`: of the configuration.
    - `grammar`: of the completions that are read, as `ChainGrammar`.
    - `tasks`: how many start states each split numbers; none where the world lists no states.
    - `floors`: mean chance of success and return of random chains from these starts, exact.
    - `optimum`: the greatest of both, each by a policy of its own. Both are within `max_chains`
      completions, and null where there is no exact model, or too many chains.
    """
    splits = splits_of(env) if splits is None else splits
    return {
        "id": config.id,
        "kwargs": config.kwargs,
        "extractor": config.extractor,
        "history": config.history,
        "max_chains": env.max_chains,
        "grammar": asdict(env.grammar),
        "tasks": {name: len(tasks) for name, tasks in splits.items()},
        **bounds(env, [task.state for tasks in splits.values() for task in tasks]),
    }


def bounds(env: LanguageEnv, states: Sequence[State]) -> dict[str, Any]:
    """Exact `floors` and `optimum` in the mean over some start states; see `manifest`."""
    if env.view.states is None or env.view.model is None:
        return {"floors": None, "optimum": None}
    model = tabular_model(env.env, env.view)
    if not model.deterministic and env.grammar.num_completions > MAX_CHAINS:
        return {"floors": None, "optimum": None}
    arguments = model, env.max_chains, env.grammar.max_chain_length, env.chain_cost
    rows = [*map(model.row, states)]
    best, random = within_chains(*arguments), within_chains(*arguments, over=np.mean)
    return {"floors": {"random": _means(random, rows)}, "optimum": _means(best, rows)}


def _means(bounds: tuple[np.ndarray, np.ndarray], rows: list[int]) -> dict[str, float]:
    success, returns = (float(values[rows].mean()) for values in bounds)
    return {"success": success, "return": returns}
