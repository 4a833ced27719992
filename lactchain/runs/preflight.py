"""What a command names is looked for at once: worlds, models, folders; a run stands for its result.

Nothing heavy is imported, so that whoever mistypes a name waits a second, and not until torch is
loaded, and the folder of the run is left as it was.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from lactchain.config.settings import CriticConfig, EnvironmentConfig, PlayerConfig
from lactchain.environments.registry import find_env
from lactchain.errors import DataError
from lactchain.models.weights import resolve_weights
from lactchain.storage.files import to_json
from lactchain.storage.manifests import is_run, read_run_file, run_around
from lactchain.storage.results import ADAPTER_RECORD, base_of, result_of

Config = TypeVar("Config")

RESULTS = {
    "adapter": "actor",
    "checkpoint": "critic",
    "critic": "critic",
    "values": "values",
    "trajectories": "trajectories",
    "pairs": "pairs",
}
"""Settings that name a folder, and which result of a run is meant where it is one."""
READ = {"model", "data", "panel", *RESULTS}
"""Settings that name a file or folder which is read."""

WORDING = ("id", "template", "action_names", "extractor", "history")
"""Settings of an environment that decide what an actor reads, and how it is to answer."""

log = logging.getLogger(__name__)


def look_up(config: Config, may_be_missing: bool = False) -> Config:
    """The configuration with the results of runs in the place of their folders.

    Args:
        may_be_missing: whether folders and models need not be there, as for an estimate.

    Raises:
        ConfigError: there is no such environment.
        DataError: a folder or a model is not there.
    """
    found = _Search(frozenset(unread_models(vars(config))), may_be_missing).within(config, "")
    _warn_of_other_words(found)
    return found


@dataclass(frozen=True)
class _Search:
    unread: frozenset[str]
    may_be_missing: bool

    def within(self, config: Any, prefix: str) -> Any:
        """A config, or a part of one, with what was found."""
        values = vars(config)
        if "id" in values and "kwargs" in values:
            find_env(config.id, f"{prefix}id")
        for name in READ & values.keys():
            place = str(values[name])
            if os.path.exists(place) and not (os.path.isfile(place) or os.path.isdir(place)):
                told = f"{place}: expected a file or a folder, got a pipe or device"
                raise DataError(f"{prefix}{name}: {told}")
        data = values.get("data")
        if isinstance(data, str) and self._matters(data) and not Path(data).exists():
            told = f"{data}: no such file or folder; expected recorded transitions"
            raise DataError(f"{prefix}data: {told}")
        changes = dict(self._results(values, prefix)) | self._model(config, prefix)
        for name, value in values.items():
            if is_dataclass(value):
                changes[name] = self.within(value, f"{prefix}{name}.")
        return replace(config, **changes) if changes else config

    def _results(self, values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
        for name, result in RESULTS.items():
            path = values.get(name)
            if isinstance(path, str) and self._matters(path):
                with _naming(f"{prefix}{name}"):
                    yield name, str(result_of(path, result))

    def _model(self, config: Any, prefix: str) -> dict[str, str]:
        """Model and adapter of an actor that is given as a run."""
        key = f"{prefix}model"
        if not isinstance(config, PlayerConfig | CriticConfig) or key in self.unread:
            return {}
        if not self._matters(config.model):
            return {}
        with _naming(key):
            if not is_run(Path(config.model)):
                resolve_weights(config.model)
                return {}
            if isinstance(config, CriticConfig):
                raise DataError(
                    f"expected an encoder, got the run {config.model}; to go on with its critic "
                    f"give it as {prefix}checkpoint"
                )
            trained = result_of(config.model, "actor")
            if not (trained / ADAPTER_RECORD).is_file():
                return {"model": str(trained)}
            return {"model": base_of(trained), "adapter": str(trained)}

    def _matters(self, path: str) -> bool:
        return Path(path).exists() or not self.may_be_missing


def _warn_of_other_words(config: Any) -> None:
    """Says so where an actor is asked in other words than the run has that trained it."""
    environment, actor = getattr(config, "environment", None), getattr(config, "actor", None)
    if not isinstance(environment, EnvironmentConfig) or not isinstance(actor, PlayerConfig):
        return
    run = run_around(actor.adapter or actor.model)
    trained = read_run_file(run).get("config", {}).get("environment") if run is not None else None
    for name in WORDING:
        before, now = to_json((trained or {}).get(name)), to_json(getattr(environment, name))
        if name in (trained or {}) and before != now:
            log.warning(
                "actor.model: %s was trained with environment.%s %s, and is asked with %s; "
                "its answers may be no chains",
                actor.adapter or actor.model,
                name,
                before,
                now,
            )


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


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Errors say which setting they are about."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{key}: {error}") from error
