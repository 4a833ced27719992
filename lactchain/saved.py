"""What runs have saved, opened by its folder alone: policies, critics, values, agents.

`DataError` says which folder has nothing of the kind, or what in it is damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lactchain.plugins import required
from lactchain.storage.results import result_of

if TYPE_CHECKING:
    from lactchain.models.actor import LanguageActor
    from lactchain.models.critic import EmbeddingCritic


def load_policy(path: str | Path, **changes: Any) -> LanguageActor:
    """The actor in a folder, or that of a run, asked and sampled as in its training.

    Args:
        path: such as runs/x/actor, or runs/x.
        changes: fields of `GuidedActorConfig` that shall differ, such as `decoding="constrained"`.

    Raises:
        DataError: there is none, it is damaged, or nothing says how it is asked.
    """
    from lactchain.models.actor import LanguageActor

    return LanguageActor.load(result_of(path, "actor"), **changes)


def load_critic(path: str | Path) -> EmbeddingCritic:
    """The critic in a folder, or that of a run."""
    from lactchain.models.critic import EmbeddingCritic

    return EmbeddingCritic.load(result_of(path, "critic"))


def load_values(path: str | Path) -> Any:
    """The values of tokens in a folder, or those of a run."""
    return required("values", "load_values").ValueModel.load(result_of(path, "values"))


def load_agent(path: str | Path) -> Any:
    """The classic agent in a folder, or the best one of a run."""
    from lactchain.baselines import training

    return training.read_agent(result_of(path, "best"))
