"""What runs have saved, opened by its folder alone: policies, critics, values, classic agents.

`DataError` says which folder has nothing of the kind, or what in it is damaged.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lactchain.baselines import training
from lactchain.config import load
from lactchain.environments.language import make_language_env
from lactchain.models.actor import POLICY_FILE, LanguageActor, at_weights
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.values import ValueModel
from lactchain.results import result_of
from lactchain.settings import EnvironmentConfig, GuidedActorConfig, known_fields


def load_policy(path: str | Path, **changes: Any) -> LanguageActor:
    """The actor in a folder, or that of a run, asked and sampled as in its training.

    Args:
        path: such as runs/x/actor, or runs/x.
        changes: fields of `GuidedActorConfig` that shall differ, such as `decoding="constrained"`.

    Raises:
        DataError: there is none, it is damaged, or nothing says how it is asked.
    """
    folder = result_of(path, "actor")
    runs = [parent for parent in list(folder.parents)[:2] if (parent / "config.yaml").is_file()]
    if (folder / POLICY_FILE).is_file() or not runs:
        return LanguageActor.load(folder, **changes)
    # Older than that file: the configuration of the run that made it says the same.
    config = load(runs[0] / "config.yaml")
    asked = known_fields(GuidedActorConfig, config.get("actor") or {})
    world = known_fields(EnvironmentConfig, config.get("environment") or {})
    actor = at_weights(GuidedActorConfig(**asked), folder)
    grammar = make_language_env(EnvironmentConfig(**world)).grammar
    return LanguageActor.from_config(replace(actor, **changes), grammar)


def load_critic(path: str | Path) -> EmbeddingCritic:
    """The critic in a folder, or that of a run."""
    return EmbeddingCritic.load(result_of(path, "critic"))


def load_values(path: str | Path) -> ValueModel:
    """The values of tokens in a folder, or those of a run."""
    return ValueModel.load(result_of(path, "values"))


def load_agent(path: str | Path) -> Any:
    """The classic agent in a folder, or the best one of a run."""
    return training.read_agent(result_of(path, "best"))
