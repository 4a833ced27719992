"""Searches hyper-parameters and architectures by evolution.

Classic agents (--ppo, --dqn, --ddpg) or language actors trained by SimPO (--language). Every
environment step of every member is counted, those of the evaluations that select among them too.
Writes RUN/lineage.jsonl, RUN/best/ and RUN/summary.json: see
lactchain/search/evolution.py, which lists the departures from AgileRL too.
"""

from dataclasses import dataclass
from typing import Any, Literal

from lactchain import plugins
from lactchain.baselines.settings import DDPGConfig, DQNConfig, PPOConfig, WorldConfig
from lactchain.config.settings import RunConfig, check
from lactchain.errors import ConfigError
from lactchain.runs import distributed
from lactchain.runs.process import is_dry_run
from lactchain.search.settings import EvolutionConfig, SpaceConfig
from lactchain.stages import train_simpo
from lactchain.stages.evaluate import EvaluationConfig
from lactchain.stages.stage_run import stage
from lactchain.stages.train_simpo import TrainSimPOConfig


@dataclass(frozen=True)
class LanguageConfig:
    """Language actors that are trained by SimPO, and judged by greedy episodes."""

    train: TrainSimPOConfig = TrainSimPOConfig()
    """The training of one generation; `run.threads` and `run.report_to` hold for all of them."""
    evaluation: EvaluationConfig = EvaluationConfig(num_samples=0)
    """The episodes by which members are judged."""
    fitness: Literal["episode_return", "success_rate", "success_within_2_chains"] = "success_rate"
    """The figure of the evaluation that counts."""

    def __post_init__(self) -> None:
        adapter = self.train.actor.adapter
        check(adapter is None, "train.actor.adapter", "null: each member trains its own", adapter)


@dataclass(frozen=True)
class SearchConfig:
    """A search over hyper-parameters and architectures."""

    run: RunConfig = RunConfig(run_dir="runs/search")
    environment: WorldConfig = WorldConfig()
    """What classic agents play."""
    ppo: PPOConfig | None = None
    """PPO agents are searched, with these settings but for their tunables."""
    dqn: DQNConfig | None = None
    """DQN agents are searched."""
    ddpg: DDPGConfig | None = None
    """DDPG agents are searched."""
    language: LanguageConfig | None = None
    """Language actors are searched."""
    space: SpaceConfig = SpaceConfig()
    evolution: EvolutionConfig = EvolutionConfig()
    target: float | None = None
    """Mean return (for language actors: fitness) over fresh episodes that ends the search early;
    null: none does."""

    def __post_init__(self) -> None:
        given = [name for name in SUBJECTS if getattr(self, name) is not None]
        check(len(given) == 1, "ppo", f"exactly one of {', '.join(SUBJECTS)}", given)

    @property
    def subject(self) -> Any:
        """The config whose tunables are searched."""
        if self.language is not None:
            return self.language.train
        return self.ppo or self.dqn or self.ddpg


SUBJECTS = ("ppo", "dqn", "ddpg", "language")


def main(config: SearchConfig) -> dict[str, Any]:
    """Searches, or goes on with a search; returns the best that was found.

    Raises:
        ConfigError: a tunable is unknown or out of its range, the folder is another run's, or
            there are several processes.
        Interrupted: a signal asked the process to stop; what is whole is saved.
    """
    if (count := distributed.world_size()) > 1:
        raise ConfigError(
            f"search: expected a single process, got {count}; start it without a launcher, "
            "members are trained one after the other"
        )
    if is_dry_run() and config.language is not None:
        return train_simpo.main(config.language.train)
    with stage("Search", config, report=True) as run:
        if run.outcome is None:
            from lactchain.search.agents import AgentSpecies
            from lactchain.search.evolution import evolve

            kind = AgentSpecies
            if config.language is not None:
                kind = plugins.required("language_species", "language")
            run.finish(evolve(config, run, kind(config, run)))
    return run.outcome
