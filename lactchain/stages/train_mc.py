"""Monte-Carlo values: learns from recorded episodes what the behaviour earned behind each token.

Reads --trajectories and the actor's weights, where the value model begins; writes
RUN/checkpoints/ and RUN/values/, which `actor.values` of evaluate and play names. With a cloning
weight the policy shares the trunk, and RUN/values/ is an actor too.

Departures from LMRL-Gym: (1) an episode that was cut ends with the value of its last text, not with
0; (2) hence V is learnt beside Q; (3) what texts share is read once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lactchain.run import Run
from lactchain.settings import (
    ActorConfig,
    EnvironmentConfig,
    RunConfig,
    TrainingConfig,
    ValueConfig,
)
from lactchain.stages.frame import run_stage
from lactchain.stages.token_values import train_values, value_memory

if TYPE_CHECKING:
    from lactchain.budget import Phase


@dataclass(frozen=True)
class TrainMCConfig:
    """Monte-Carlo values of the tokens in recorded episodes."""

    run: RunConfig = RunConfig(run_dir="runs/train_mc")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: ActorConfig = ActorConfig()
    """Where the value model begins: the cloned actor."""
    trajectories: str = "runs/make_offline_data/trajectories"
    """Folder or file of episodes (see `lactchain.data.sources`)."""
    mc: ValueConfig = ValueConfig()
    training: TrainingConfig = TrainingConfig()


def main(config: TrainMCConfig) -> dict[str, Any]:
    """Trains the values; returns the last losses."""
    return run_stage("Monte-Carlo values", config, train_mc, memory)


def train_mc(config: TrainMCConfig, run: Run) -> dict[str, Any]:
    """The regression on returns, with one head for Q."""
    from lactchain.trainers.mc import MonteCarloTrainer

    return train_values(config, config.mc, run, MonteCarloTrainer, "mc", num_q_heads=1)


def memory(config: TrainMCConfig) -> Iterator["Phase"]:
    """The phases that are estimated."""
    yield value_memory(config, config.mc, num_q_heads=1)
