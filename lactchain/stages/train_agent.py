"""Trains a population of classic agents: PPO, DQN, DDPG, or CQL from recorded transitions.

Writes RUN/best/ and RUN/last/ (weights), RUN/evaluations.json, RUN/report.html
and RUN/summary.json. A file RUN/stop ends the run in good order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lactchain.runs.console import figures
from lactchain.runs.process import is_dry_run
from lactchain.runs.reporting import write_page
from lactchain.stages.stage_run import dry_run

if TYPE_CHECKING:
    from lactchain.baselines.settings import TrainAgentConfig


def main(config: TrainAgentConfig) -> dict[str, Any]:
    """Trains the agents that the class of the configuration names; returns their figures."""
    if is_dry_run():
        return dry_run(config, ())
    from lactchain.baselines.training import train_agent

    summary = train_agent(config)
    write_page(config.run.run_dir)
    title = type(config).__name__.removeprefix("Train").removesuffix("Config")
    figures(title, summary)
    return summary
