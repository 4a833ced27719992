"""What runs have saved, opened by its folder alone: policies, critics, values, agents, whole runs.

`DataError` says which folder has nothing of the kind, or what in it is damaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lactchain.errors import DataError
from lactchain.inspection import run_view
from lactchain.inspection.run_view import RunView
from lactchain.plugins import required
from lactchain.storage.results import result_of
from lactchain.types import PreferencePair

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


@dataclass(frozen=True)
class OpenedRun(RunView):
    """What one run folder holds, and the models in it.

    The rounds of a pipeline are counted from 1; 0 is what stood before the first one.
    """

    def actor(self, number: int | None = None, **changes: Any) -> LanguageActor:
        """The actor that the run made, or the one that stood after a round of it.

        Args:
            number: of the round; None: that of the result.
            changes: fields of `GuidedActorConfig` that shall differ, such as `temperature=0.0`.

        Raises:
            DataError: there is none, it is damaged, or it was given to the run.
        """
        stage = "warm_start" if number == 0 else f"round_{number}/simpo"
        return load_policy(self._of_round(number, stage), **changes)

    def critic(self, number: int | None = None) -> EmbeddingCritic:
        """The critic of the run, or that of a round; `DataError` as for the actor."""
        return load_critic(self._of_round(number, f"round_{number}/critic"))

    @cached_property
    def pairs(self) -> list[PreferencePair]:
        """The preference pairs that were made: of a pipeline those of all rounds, one by one."""
        of_rounds = [pair for stage in self.stages.values() for pair in stage.pairs]
        return of_rounds or super().pairs

    def _of_round(self, number: int | None, stage: str) -> Path:
        """The folder of a stage, or that of the run itself."""
        if number is None:
            return self.directory
        folder = self.directory / stage
        if not folder.is_dir():
            raise DataError(
                f"round: expected one of {self.directory} that made such a model, got {number};"
                " what was given to a run lies where it was"
            )
        return folder


def open_run(path: str | Path) -> OpenedRun:
    """A run folder to look into; `ConfigError` where it is none."""
    return OpenedRun(run_view.open_run(path).directory)
