"""ILQL: learns from recorded episodes what each token is worth under the best behaviour in them.

Reads --trajectories and the actor's weights, where the value model begins; writes
RUN/checkpoints/ and RUN/values/, which `actor.values` of evaluate and play names. With a cloning
weight the policy shares the trunk, and RUN/values/ is an actor too.

Departures from Snell et al. 2022: (1) the state behind an answer is the next prompt as the policy
will see it, not the text so far; (2) a time limit is no ending; (3) equal decisions are merged and
weighted, and what texts share is read once: the same loss in less time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lactchain.run import Run
from lactchain.settings import (
    ActorConfig,
    EnvironmentConfig,
    ILQLConfig,
    RunConfig,
    TrainingConfig,
)
from lactchain.stages.frame import run_stage
from lactchain.stages.token_values import train_values, value_memory

if TYPE_CHECKING:
    from lactchain.budget import Phase


@dataclass(frozen=True)
class TrainILQLConfig:
    """Implicit language Q-learning on recorded episodes."""

    run: RunConfig = RunConfig(run_dir="runs/train_ilql")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    """Where the value model begins: the cloned actor."""
    trajectories: str = "runs/make_offline_data/trajectories"
    """Folder or file of episodes (see `lactchain.data.sources`)."""
    ilql: ILQLConfig = ILQLConfig()
    training: TrainingConfig = TrainingConfig()


def main(config: TrainILQLConfig) -> dict[str, Any]:
    """Trains the values; returns the last losses."""
    return run_stage("ILQL", config, train_ilql, memory)


def train_ilql(config: TrainILQLConfig, run: Run) -> dict[str, Any]:
    """In-sample Q-learning, with two heads for Q and a target network."""
    from lactchain.trainers.ilql import ILQLTrainer

    return train_values(config, config.ilql, run, ILQLTrainer, "ilql", num_q_heads=2)


def memory(config: TrainILQLConfig) -> Iterator["Phase"]:
    """The phases that are estimated."""
    yield value_memory(config, config.ilql, num_q_heads=2, target=True)
