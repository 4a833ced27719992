"""Evaluates an actor: an episode from every start state, and sampled completions.

Reads the actor's weights; writes RUN/trajectories/*.parquet, RUN/episodes.json (one line per
episode), RUN/samples/*.parquet, RUN/summary.json and, of an actor that values guide,
RUN/token_values (docs/runs.md).
Decoding and temperature are the actor's: greedy and free by default, with --actor.decoding
constrained or scored as alternatives.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from lactchain import plugins
from lactchain.config.bounds import Bound, Bounded, Count
from lactchain.config.settings import EnvironmentConfig, GuidedActorConfig, RunConfig
from lactchain.data.episodes import StartSample, sampled_starts
from lactchain.data.evaluations import write_episodes
from lactchain.data.exact_values import expected_figures, greedy_share
from lactchain.data.intervals import share_interval
from lactchain.data.rollouts import Rollouts, evaluate
from lactchain.data.samples import NUM_STATES, invalid_rate, retrieval_figures, sample_completions
from lactchain.data.sources import read_trajectories
from lactchain.environments.scripted import RememberingPolicy
from lactchain.environments.views import lists_states
from lactchain.runs import distributed
from lactchain.runs.run import Run
from lactchain.stages.stage_run import BatchSettings, stage

EPISODES = 500
"""At least so many are played where one from each start state is luck: the standard error of a
share is then .02 at most."""


@dataclass(frozen=True)
class EvaluationConfig(Bounded):
    """Greedy episodes from every start state, and sampled completions."""

    num_envs: Count = 256
    """Episodes played side by side in each process."""
    num_episodes_per_start: Count | None = None
    """Episodes from every start state; null: one where the world is known to throw no dice, else
    enough for 500."""
    num_starts: Count | None = None
    """Start states to play from, the same in all runs; the success then has an interval of 95 %,
    success_rate_low to success_rate_high. Null: all."""
    sample: StartSample = "reported"
    """Which of two samples of start states that is: the one that figures are reported of, or the
    one that a pipeline compares its rounds by."""
    num_samples: Annotated[int, Bound(at_least=0, at_most=10_000_000)] = 10_000
    """Completions sampled freely at temperature 1 in practised states, to measure how many are no
    chains, and by 128 of them whether the actor reads (`lactchain.data.samples`); 0: neither."""


@dataclass(frozen=True)
class EvaluateConfig:
    """Greedy episodes from every start state."""

    run: RunConfig = RunConfig(run_dir="runs/evaluate")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: GuidedActorConfig = GuidedActorConfig(temperature=0.0)
    evaluation: EvaluationConfig = EvaluationConfig()
    panel: str | None = None
    """A file of numbered tasks that others can cite, or the name of a shipped one
    (`scripts/panel.py`): exactly these are played, and RUN/panel_result.json is written. Null:
    start states of the world."""


def main(config: EvaluateConfig) -> dict[str, Any]:
    """Plays and samples; returns the figures."""
    batches = [BatchSettings("evaluation.num_envs", "actor.max_new_tokens")]
    with stage("Evaluation", config, batches) as run:
        if run.outcome is None:
            run.finish(evaluate_actor(config, run))
    return run.outcome


def evaluate_actor(config: EvaluateConfig, run: Run) -> dict[str, Any]:
    """The figures of the actor of a configuration, and of completions that are sampled from it."""
    from lactchain.models.actor import load_player

    seed, num_samples = config.run.seed, config.evaluation.num_samples
    rollouts = Rollouts(config.environment, config.evaluation.num_envs)
    actor = load_player(config.actor, rollouts.env.grammar)
    greedy = config.actor.temperature == 0
    # A world with dice shows a greedy actor the same texts over and over.
    player = actor if rollouts.deterministic or not greedy else RememberingPolicy(actor)
    folder = run.path("trajectories")
    starts = sampled_starts(rollouts.env, config.evaluation.num_starts, config.evaluation.sample)
    per_start = config.evaluation.num_episodes_per_start or enough_per_start(rollouts, len(starts))
    dice = seed
    if config.panel is not None:
        panels, per_start = plugins.required("panels", "panel"), 1
        starts, dice = panels.starts(config.panel, config.environment)
    results, summary = evaluate(player, rollouts, dice, per_start, folder, starts)
    if config.evaluation.num_starts is not None and "success_rate" in summary:
        # What was drawn counts: starts, whose episodes are alike, or, where all were played, dice.
        all_played = len(starts) == len(rollouts.env.start_states())
        is_luck = all_played and not (greedy and rollouts.deterministic)
        trials = len(results) if is_luck else len(results) // per_start
        low, high = share_interval(summary["success_rate"] * trials, trials)
        summary |= {"success_rate_low": low, "success_rate_high": high}
    if distributed.is_main():
        write_episodes(run.path("episodes.json"), results)
        if config.panel is not None:
            panels.write_result(run, config.panel, config)
        if actor.values is not None:
            actor.values.record(run, actor.template, read_trajectories(folder))
    if num_samples:
        sampling = replace(config.actor, decoding="free", temperature=1.0)
        sampler = actor.with_config(sampling, rollouts.env.grammar)
        samples = sample_completions(sampler, rollouts, num_samples, seed, run.path("samples"))
        summary["sampled_invalid_rate"] = invalid_rate(samples)
        if distributed.is_main():
            texts = [text for t in read_trajectories(folder) for text in t.observations[:-1]]
            places, most = rollouts.num_envs, min(num_samples, NUM_STATES)
            summary |= retrieval_figures(sampler, rollouts.env, texts, seed, places, most)
    if greedy and distributed.is_main():
        # The actor itself, asked in one order: what it remembers depends on who played what.
        summary |= expected_figures(actor, rollouts.env, rollouts.num_envs)
        summary |= greedy_share(rollouts.env, lambda: read_trajectories(folder))
    summary = distributed.of_main(summary)  # which a pipeline's processes go by
    run.log_once({f"eval/{name}": value for name, value in summary.items()}, step=0)
    return summary


def enough_per_start(rollouts: Rollouts, num_starts: int) -> int:
    """One episode where it tells all that there is to know; else so many that luck evens out.

    Where a seed stands for a state, its luck would only repeat itself.
    """
    known = rollouts.deterministic or not lists_states(rollouts.env)
    return 1 if known else -(-EPISODES // num_starts)
