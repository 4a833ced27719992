"""What a world that is served says of itself: words, tasks, floors, and its exact optimum."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.chance import best_within, random_within
from lactchain.environments.exact import MAX_CHAINS
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, tabular_model
from lactchain_extras.ecosystems.tasks import Splits, splits_of


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
    best, random = best_within(*arguments), random_within(*arguments)
    return {"floors": {"random": _means(random, rows)}, "optimum": _means(best, rows)}


def _means(bounds: tuple[np.ndarray, np.ndarray], rows: list[int]) -> dict[str, float]:
    success, returns = (float(values[rows].mean()) for values in bounds)
    return {"success": success, "return": returns}
