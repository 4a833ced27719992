"""Trains a population of classic agents: PPO, DQN, DDPG, or CQL from recorded transitions.

Writes RUN/best/ and RUN/last/ (weights), RUN/evaluations.json, RUN/report.html
and RUN/summary.json. A file RUN/stop ends the run in good order.
"""

from typing import Any

from lactchain.baselines.settings import TrainAgentConfig
from lactchain.stages.stage_run import stage


def train_agent(config: TrainAgentConfig) -> dict[str, Any]:
    """Trains the agents that the class of the configuration names, or goes on; their figures.

    Raises:
        ConfigError: the environment does not suit the agent, or the folder is another run's.
        NonFiniteError: a reward, an observation or a gradient was NaN or infinite.
        Interrupted: a signal asked the process to stop; the state is saved.
    """
    title = type(config).__name__.removeprefix("Train").removesuffix("Config")
    with stage(title, config, report=True) as run:
        if run.outcome is None:
            from lactchain.baselines.training import Training

            run.finish(Training(config, run).go_on())
    return run.outcome


main = train_agent
