"""The stages of a pipeline: which configuration each gets, and what the whole run reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lactchain import distributed
from lactchain.budget import check_budget
from lactchain.data.base_models import prepare_tiny_actor, prepare_tiny_encoder
from lactchain.files import atomic_write
from lactchain.jobs import (
    EvaluateConfig,
    RunPipelineConfig,
    TrainBCConfig,
    TrainCriticConfig,
    TrainSimPOConfig,
)
from lactchain.models.adapters import SEAL_FILE
from lactchain.models.critic import check_critic
from lactchain.run import Run

AT_MOST = {"actions_over_shortest", "invalid_rate", "sampled_invalid_rate"}
"""Figures that a target bounds from above; all others are bounded from below."""

SEEDS_PER_ROUND = 1000


class Stages:
    """The configurations of a pipeline's stages, in the order in which they are asked for.

    Attributes:
        actor: the actor as it stands: a model, or a model and an adapter.
        critic: the folder of the critic as it stands.
        evaluations: figures before the first round, and after each.
    """

    def __init__(self, config: RunPipelineConfig, run: Run) -> None:
        self.config = config
        self.run = run
        self.actor = config.actor
        self.critic = config.critic.config.checkpoint
        self.encoder = config.critic.config.model
        self.evaluations: list[dict[str, Any]] = []
        self.critic_summaries: list[dict[str, Any]] = []
        self.actor_summaries: list[dict[str, Any]] = []
        if config.tiny is not None:
            self._build_tiny_models()
        check_critic(replace(config.critic.config, model=self.encoder))
        check_budget(config)

    def warm_start(self) -> TrainBCConfig:
        """Cloning of scripted behaviour, of all weights: an adapter comes with the first round."""
        return TrainBCConfig(
            run=self._stage("warm_start", 0),
            environment=self.config.environment,
            actor=replace(self.actor, lora=None),
            behavior=self.config.warm_start.behavior,
            training=self.config.warm_start.training,
        )

    def evaluation(self, number: int) -> EvaluateConfig:
        """Greedy, free episodes from every start state, after the round of that number."""
        return EvaluateConfig(
            run=self._stage(f"round_{number}/evaluation", number),
            environment=self.config.environment,
            actor=replace(self.actor, decoding="free", temperature=0.0),
            evaluation=self.config.evaluation,
        )

    def critic_stage(self, number: int) -> TrainCriticConfig:
        """The critic of a round; it goes on from that of the round before."""
        stage = self.config.critic
        return TrainCriticConfig(
            run=self._stage(f"round_{number}/critic", number),
            environment=self.config.environment,
            actor=replace(self.actor, decoding="constrained", temperature=1.0),
            critic=replace(stage.config, model=self.encoder, checkpoint=self.critic),
            collect=stage.collect,
            regression=stage.regression,
            training=stage.training,
            compare_with_exact=stage.compare_with_exact and number == 1,
        )

    def simpo_stage(self, number: int) -> TrainSimPOConfig:
        """SimPO on the answers of the actor as it stands."""
        stage = self.config.simpo
        decay = self.config.learning_rate_decay ** (number - 1)
        growth = self.config.nll_weight_growth ** (number - 1)
        training = replace(stage.training, learning_rate=stage.training.learning_rate * decay)
        simpo = replace(stage.simpo, nll_weight=stage.simpo.nll_weight * growth)
        return TrainSimPOConfig(
            run=self._stage(f"round_{number}/simpo", number),
            environment=self.config.environment,
            actor=self.actor,
            critic=self.critic if stage.preferences.rank_by == "advantage" else None,
            preferences=stage.preferences,
            simpo=simpo,
            training=training,
        )

    def take_actor(self, config: TrainBCConfig | TrainSimPOConfig, summary: dict) -> None:
        """Goes on with the actor that a stage has trained."""
        folder = Path(config.run.run_dir) / "actor"
        if (folder / SEAL_FILE).is_file():
            self.actor = replace(self.actor, adapter=str(folder))
        else:
            self.actor = replace(self.actor, model=str(folder), adapter=None)
        self.actor_summaries.append(summary)

    def take_critic(self, config: TrainCriticConfig, summary: dict) -> None:
        """Goes on with the critic that a stage has trained."""
        self.critic = str(Path(config.run.run_dir) / "critic")
        self.critic_summaries.append(summary)

    def take_evaluation(self, figures: dict[str, Any]) -> None:
        """Keeps the figures of a round; the metrics of the pipeline are these, over rounds."""
        metrics = {f"eval/{name}": value for name, value in figures.items()}
        self.run.log_once(metrics, step=len(self.evaluations))
        self.evaluations.append(figures)

    def target_is_met(self) -> bool:
        """Whether the last evaluation meets every figure of the target, if there is one."""
        last, target = self.evaluations[-1], self.config.target
        return bool(target) and all(
            _meets(last[name], bound, name in AT_MOST) for name, bound in target.items()
        )

    def summary(self, wall_seconds: float, cpu_seconds: float) -> dict[str, Any]:
        """What `summary.json` holds: the figures before and after, and those of every round.

        Args:
            wall_seconds: on the clock, since the run began or went on.
            cpu_seconds: of this process and its threads, since then.
        """
        before, after = self.evaluations[0], self.evaluations[-1]
        first = self.critic_summaries[0]
        stages = self.actor_summaries + self.critic_summaries
        return {
            "seed": self.config.run.seed,
            "success_rate_before": before["success_rate"],
            "success_rate_after": after["success_rate"],
            "success_within_2_chains": after["success_within_2_chains"],
            "mean_chain_length": after["mean_chain_length"],
            "actions_over_shortest": after["actions_over_shortest"],
            "invalid_rate_after": after.get("sampled_invalid_rate", after["invalid_rate"]),
            "critic_r2": first.get("critic_r2"),
            "critic_rmse": first.get("critic_rmse"),
            "num_pairs": sum(stage.get("num_pairs", 0) for stage in stages),
            "num_cloned_chains": sum(stage.get("num_examples", 0) for stage in stages),
            # Actions that were played to learn from; evaluations do not count, for any agent.
            "num_env_steps": sum(stage.get("num_env_steps", 0) for stage in stages),
            "rollouts_per_second": first.get("time/chains_per_second"),
            "wall_seconds": wall_seconds,
            "time/cpu_seconds": cpu_seconds,
            "num_rounds": len(self.critic_summaries),
            "target_met": self.target_is_met(),
            "actor": {"model": self.actor.model, "adapter": self.actor.adapter},
            "critic": self.critic,
            "rounds": [_row(number, figures) for number, figures in enumerate(self.evaluations)],
        }

    def _stage(self, name: str, number: int):
        """The run folder of a stage, whose seed differs from round to round."""
        run = self.config.run
        seed = (run.seed * SEEDS_PER_ROUND + number) % 2**32
        return replace(run, run_dir=str(self.run.directory / name), seed=seed, resume="auto")

    def _build_tiny_models(self) -> None:
        actor, encoder = (str(self.run.directory / "base" / name) for name in ("actor", "encoder"))
        if distributed.is_main():
            seed = self.config.run.seed
            prepare_tiny_actor(actor, self.config.tiny, self.config.environment, seed)
            prepare_tiny_encoder(encoder, actor)
        distributed.barrier()
        self.actor, self.encoder = replace(self.actor, model=actor), encoder


def _meets(figure: float | None, bound: float, at_most: bool) -> bool:
    """Whether a figure is as good as asked; one that could not be computed is not."""
    return figure is not None and (figure <= bound if at_most else figure >= bound)


def _row(number: int, figures: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "success_rate",
        "success_within_2_chains",
        "mean_chain_length",
        "actions_over_shortest",
        "sampled_invalid_rate",
    )
    return {"round": number} | {name: figures.get(name) for name in names}


def gather_results(run: Run, num_rounds: int) -> None:
    """Copies what the report shows first to the top of the run's folder."""
    sources = {
        "episodes_before.json": "round_0/evaluation/episodes.json",
        "episodes.json": f"round_{num_rounds}/evaluation/episodes.json",
        "values.json": "round_1/critic/values.json",
    }
    for name, source in sources.items():
        if (run.directory / source).is_file():
            atomic_write(run.path(name), (run.directory / source).read_bytes())
