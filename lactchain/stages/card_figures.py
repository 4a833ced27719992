"""The figures of model cards, each with what it is over and with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lactchain.data.evaluations import EpisodeResult, by_part, read_values
from lactchain.data.intervals import error_sums, r2, resampled_interval, rmse, share_interval
from lactchain.data.rollouts import Rollouts
from lactchain.models.model_cards import figure
from lactchain.run import Run
from lactchain.settings import EnvironmentConfig

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from lactchain.stages.run_pipeline import RunPipelineConfig
    from lactchain.stages.token_values import TrainValuesConfig
    from lactchain.stages.train_critic import TrainCriticConfig

Summary = dict[str, Any]


def throws_no_dice(environment: EnvironmentConfig) -> bool:
    """Whether greedy episodes from all start states leave nothing to chance, as far as is known."""
    return Rollouts(environment, num_envs=1).deterministic is True


def success_figures(
    environment: EnvironmentConfig, results: list[EpisodeResult], exactly: bool
) -> Iterator[EvalResult]:
    """Figures of N > 0 greedy episodes; where states are held back, those of each part as well.

    Args:
        exactly: nothing was drawn: they are of all start states, and have no interval.
    """
    for part, episodes in {"": results, **by_part(results)}.items():
        of, behind = f"{len(episodes):,} episodes", f"_{part}" if part else ""
        if exactly:
            of = _all_starts(episodes, part.replace("_", " "))
        shares = {
            "success_rate": sum(r.success for r in episodes),
            "success_within_2_completions": sum(r.success and r.num_chains <= 2 for r in episodes),
        }
        for name, count in shares.items():
            interval = None if exactly else share_interval(count, len(episodes))
            yield figure(environment, name + behind, count / len(episodes), of, interval)
    solved = [r for r in results if r.success and r.shortest is not None]
    if solved:
        of = _all_starts(solved, "solved") if exactly else f"{len(solved):,} solved episodes"
        ratio = lambda sums: sums[0] / sums[1]  # noqa: E731
        sums = np.array([(r.num_actions, r.shortest) for r in solved])
        interval = None if exactly else resampled_interval(sums, ratio)
        yield figure(environment, "actions_over_shortest", ratio(sums.sum(axis=0)), of, interval)


def _all_starts(episodes: list[EpisodeResult], kind: str) -> str:
    """What exact figures are over; a start state counts once, however often it was played."""
    count = len({str(episode.state) for episode in episodes})
    return " ".join(filter(None, (f"all {count:,}", kind, "start states, exactly")))


def invalid_figures(config: RunPipelineConfig, rate: float) -> Iterator[EvalResult]:
    """The share of sampled completions that are no chain, where some were sampled."""
    samples = config.evaluation.num_samples
    if samples:
        interval = share_interval(round(rate * samples), samples)
        of = f"{samples:,} completions"
        yield figure(config.environment, "invalid_completions", rate, of, interval)


def critic_figures(config: TrainCriticConfig, run: Run, summary: Summary) -> Iterator[EvalResult]:
    """How well a critic predicts held-out returns, and exact values where there are some."""
    environment, of = config.environment, "returns of held-out episodes"
    for name in ("r2", "rmse"):
        value = summary.get(f"eval_{name}", math.nan)
        if math.isfinite(value):  # constant returns have no R2
            interval = summary[f"eval_{name}_interval"]
            yield figure(environment, f"{name}_of_returns", value, of, interval)
    if "critic_r2" not in summary:
        return
    values = read_values(run.path("values.json"))
    sums = error_sums(np.array(values.critic), np.array(values.exact))
    of = f"exact values of {len(sums):,} states"
    for name, statistic in (("r2", r2), ("rmse", rmse)):
        value = summary[f"critic_{name}"]
        if math.isfinite(value):
            interval = resampled_interval(sums, statistic)
            yield figure(environment, f"{name}_of_values", value, of, interval)


def loss_figures(config: TrainValuesConfig, summary: Summary) -> Iterator[EvalResult]:
    """The last losses of a training of values, which have no interval."""
    for name, value in summary.items():
        if name.startswith("loss/"):
            of = "the last batches of the training"
            yield figure(config.environment, name.replace("/", "_"), value, of)
