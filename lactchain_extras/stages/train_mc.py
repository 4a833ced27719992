"""Monte-Carlo values: learns from recorded episodes what the behaviour earned behind each token.

Reads --trajectories and the actor's weights, where the value model begins; writes
RUN/checkpoints/, RUN/values/, which `actor.values` of evaluate and play names, RUN/token_values/,
what they are along a few episodes, and RUN/report.html, which shows that. With a cloning weight the
policy shares the trunk, and RUN/values/ is an actor too.

Departures from LMRL-Gym: (1) an episode that was cut ends with the value of its last text, not with
0; (2) hence V is learnt beside Q; (3) what texts share is read once.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from lactchain.config.settings import RunConfig
from lactchain.stages.stage_run import stage
from lactchain_extras.stages.token_values import TrainValuesConfig, batches_of, train_values
from lactchain_extras.token_values.settings import ValueConfig


@dataclass(frozen=True)
class TrainMCConfig(TrainValuesConfig):
    """Monte-Carlo values of the tokens in recorded episodes."""

    run: RunConfig = RunConfig(run_dir="runs/train_mc")
    mc: ValueConfig = ValueConfig()
    method: ClassVar[str] = "mc"


def main(config: TrainMCConfig) -> dict[str, Any]:
    """Trains the values; returns the last losses."""
    with stage("Monte-Carlo values", config, batches_of(heads=1), report=True) as run:
        if run.outcome is None:
            run.finish(train_values(config, run))
    return run.outcome
