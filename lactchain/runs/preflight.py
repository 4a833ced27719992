"""What a command names is looked for at once: worlds, models, folders; a run stands for its result.

Nothing heavy is imported, so that whoever mistypes a name waits a second, and not until torch is
loaded, and the folder of the run is left as it was.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from lactchain.config.settings import CriticConfig, EnvironmentConfig, PlayerConfig
from lactchain.environments.language import make_language_env
from lactchain.environments.registry import find_env
from lactchain.errors import DataError, LactChainError
from lactchain.models.weights import resolve_weights, weights_in
from lactchain.storage.files import to_json
from lactchain.storage.manifests import is_run, read_run_file, result_of, run_around

Config = TypeVar("Config")

RESULTS = {name: name for name in ("critic", "values", "trajectories", "pairs")}
RESULTS |= {"adapter": "actor", "checkpoint": "critic"}
"""Settings that name a folder, and which result of a run is meant where it is one."""
READ = {"model", "data", "panel", *RESULTS}
"""Settings that name a file or folder which is read."""

WORDING = ("id", "template", "action_names", "extractor", "history")
"""Settings of an environment that decide what an actor reads, and how it is to answer."""

log = logging.getLogger(__name__)


def look_up(config: Config, may_be_missing: bool = False) -> Config:
    """The configuration with the results of runs in the place of their folders.

    `ConfigError` where there is no such environment, and `DataError` where a folder or a model is
    not there, unless it `may_be_missing`, as for an estimate.
    """
    unread = frozenset(unread_models(vars(config)))

    def is_read(key: str, path: Any) -> bool:
        there = isinstance(path, str) and (not may_be_missing or Path(path).exists())
        return there and key not in unread

    found = _found(config, "", is_read)
    if "actor.model" not in unread:
        _warn_of_other_words(found)
    return found


def _found(config: Any, prefix: str, is_read: Callable[[str, Any], bool]) -> Any:
    """A config, or a part of one, with what was found."""
    values, changes = vars(config), {}
    if "id" in values and "kwargs" in values:
        find_env(config.id, f"{prefix}id")
    for name, value in sorted(values.items(), key=lambda item: is_dataclass(item[1])):
        key = f"{prefix}{name}"
        if is_dataclass(value):
            changes[name] = _found(value, f"{key}.", is_read)
        elif name in READ and is_read(key, value):
            try:
                if os.path.exists(value) and not (os.path.isfile(value) or os.path.isdir(value)):
                    raise DataError(f"{value}: expected a file or a folder, got a pipe or device")
                if name in RESULTS:
                    changes[name] = str(result_of(value, RESULTS[name]))
                elif name == "data" and not Path(value).exists():
                    problem = f"{value}: no such file or folder; expected recorded transitions"
                    raise DataError(problem)
                elif name == "model" and isinstance(config, PlayerConfig | CriticConfig):
                    changes |= _model(config, prefix)
            except DataError as error:
                raise DataError(f"{key}: {error}") from error
    return replace(config, **changes) if changes else config


def _model(config: PlayerConfig | CriticConfig, prefix: str) -> dict[str, str]:
    """Model and adapter of an actor that is given as a run."""
    if not is_run(Path(config.model)):
        resolve_weights(config.model)
        return {}
    if isinstance(config, CriticConfig):
        raise DataError(
            f"expected an encoder, got the run {config.model}; to go on with its critic "
            f"give it as {prefix}checkpoint"
        )
    found = weights_in(result_of(config.model, "actor"))
    return {name: place for name, place in found.items() if place is not None}


def _warn_of_other_words(config: Any) -> None:
    """Says so where an actor is asked in other words than the run has that trained it."""
    environment, actor = getattr(config, "environment", None), getattr(config, "actor", None)
    if not isinstance(environment, EnvironmentConfig) or not isinstance(actor, PlayerConfig):
        return
    run, trained = run_around(actor.adapter or actor.model), {}
    with suppress(DataError):  # a damaged file is for commands about that run to tell
        trained = read_run_file(run).get("config", {}).get("environment") or {} if run else {}
    for name in WORDING:
        before, now = to_json(trained.get(name)), to_json(getattr(environment, name))
        if name in trained and before != now and not _reads_alike(environment, trained, name):
            log.warning(
                "actor.model: %s was trained with environment.%s %s, and is asked with %s; "
                "its answers may be no chains",
                *(actor.adapter or actor.model, name, before, now),
            )


def _reads_alike(environment: EnvironmentConfig, trained: Mapping[str, Any], name: str) -> bool:
    """Whether two names of a template stand for one: a view may have no brief one."""
    if name != "template":
        return False
    with suppress(LactChainError, TypeError):
        names = trained["template"], environment.template
        envs = (make_language_env(replace(environment, template=given)) for given in names)
        return len({env.view.template for env in envs}) == 1
    return False


def unread_models(values: Mapping[str, Any]) -> Iterator[str]:
    """Models that have a name and may never be read."""
    critic = values.get("critic")
    if values.get("tiny") is not None:  # the pipeline builds its own
        yield from ("actor.model", "critic.config.model")
    if "critic_as" in values and critic is not None:  # it is exported in the actor's place
        yield "actor.model"
    if "compare_with_exact" in values and values["trajectories"] is not None:
        yield "actor.model"  # whose episodes are there
    if isinstance(critic, CriticConfig) and critic.checkpoint is not None:
        yield "critic.model"
