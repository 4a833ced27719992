"""Evaluates an actor: an episode from every start state, and sampled completions.

Reads the actor's weights; writes RUN/trajectories/*.parquet, RUN/episodes.json (one line per
episode), RUN/summary.json and, where completions are ranked by values, RUN/completion_values.json.
Decoding and temperature are the actor's: greedy and free by default, with --actor.decoding
constrained or scored as alternatives.
"""

from dataclasses import dataclass, replace
from typing import Any

from lactchain import distributed
from lactchain.bounds import AtLeast0, AtLeast1, Bounded
from lactchain.data.evaluations import write_episodes, write_values
from lactchain.data.exact_values import estimate_completion_values
from lactchain.data.retrieval import retrieval_figures
from lactchain.data.rollouts import Rollouts, evaluate, invalid_rate
from lactchain.data.trajectories import read_trajectories
from lactchain.run import Run
from lactchain.settings import EnvironmentConfig, GuidedActorConfig, RunConfig
from lactchain.stages.running import Phases, run_stage


@dataclass(frozen=True)
class EvaluationConfig(Bounded):
    """Greedy episodes from every start state, and sampled completions."""

    num_envs: AtLeast1 = 256
    """Episodes played side by side in each process."""
    num_episodes_per_start: AtLeast1 = 1
    """Episodes from every start state; more than one where world or actor throw dice."""
    num_samples: AtLeast0 = 10_000
    """Completions sampled freely at temperature 1, to measure how many are no chains; 0: none, and
    no measure either of whether the actor reads (`lactchain.data.retrieval`)."""


@dataclass(frozen=True)
class EvaluateConfig:
    """Greedy episodes from every start state."""

    run: RunConfig = RunConfig(run_dir="runs/evaluate")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: GuidedActorConfig = GuidedActorConfig(temperature=0.0)
    evaluation: EvaluationConfig = EvaluationConfig()


def main(config: EvaluateConfig) -> dict[str, Any]:
    """Plays and samples; returns the figures."""
    return run_stage("Evaluation", config, evaluate_actor, memory)


def evaluate_actor(config: EvaluateConfig, run: Run) -> dict[str, Any]:
    """The figures of the actor of a configuration, and of completions that are sampled from it."""
    from lactchain.models.actor import LanguageActor

    seed, samples = config.run.seed, config.evaluation.num_samples
    rollouts = Rollouts(config.environment, config.evaluation.num_envs)
    actor = LanguageActor.from_config(config.actor, rollouts.env.grammar)
    per_start, folder = config.evaluation.num_episodes_per_start, run.path("trajectories")
    results, summary = evaluate(actor, rollouts, seed, per_start, folder)
    if distributed.is_main():
        write_episodes(run.path("episodes.json"), results)
        if (values := estimate_completion_values(actor, rollouts.env)) is not None:
            write_values(run.path("completion_values.json"), values)
    if samples:
        sampling = replace(config.actor, decoding="free", temperature=1.0)
        sampler = actor.with_config(sampling, rollouts.env.grammar)
        rate = invalid_rate(sampler, rollouts, samples, seed, run.directory)
        summary["sampled_invalid_rate"] = rate
        texts = [text for t in read_trajectories(folder) for text in t.observations[:-1]]
        summary |= retrieval_figures(sampler, rollouts.env, texts, seed)
    run.log_once({f"eval/{name}": value for name, value in summary.items()}, step=0)
    return summary


def memory(config: EvaluateConfig) -> Phases:
    """The phases that are estimated."""
    from lactchain.budget import completions

    rows, setting = config.evaluation.num_envs, "evaluation.num_envs"
    actor = config.actor
    if config.evaluation.num_samples:  # sampled freely
        actor = replace(actor, decoding="free") if actor.decoding == "constrained" else actor
    yield completions("evaluation", config.environment, actor, rows, setting)
