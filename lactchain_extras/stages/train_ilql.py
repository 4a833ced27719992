"""ILQL: learns from recorded episodes what each token is worth under the best behaviour in them.

Reads --trajectories and the actor's weights, where the value model begins; writes
RUN/checkpoints/, RUN/values/, which `actor.values` of evaluate and play names, RUN/token_values/,
what they are along a few episodes, and RUN/report.html, which shows that. With a cloning weight the
policy shares the trunk, and RUN/values/ is an actor too.

Departures from Snell et al. 2022: (1) the state behind a completion is the next prompt as the
policy will see it, not the text so far; (2) a time limit is no ending; (3) equal decisions are
merged and weighted, and what texts share is read once: the same loss in less time.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from lactchain.config.settings import RunConfig
from lactchain.stages.stage_run import stage
from lactchain_extras.stages.token_values import TrainValuesConfig, batches_of, train_values
from lactchain_extras.token_values.settings import ILQLConfig


@dataclass(frozen=True)
class TrainILQLConfig(TrainValuesConfig):
    """Implicit language Q-learning on recorded episodes."""

    run: RunConfig = RunConfig(run_dir="runs/train_ilql")
    ilql: ILQLConfig = ILQLConfig()
    method: ClassVar[str] = "ilql"


def main(config: TrainILQLConfig) -> dict[str, Any]:
    """Trains the values; returns the last losses."""
    with stage("ILQL", config, batches_of(heads=2), report=True) as run:
        if run.outcome is None:
            run.finish(train_values(config, run))
    return run.outcome
