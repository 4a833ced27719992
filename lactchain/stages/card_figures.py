"""The figures of model cards, each with what it is over and with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lactchain.data.evaluations import EpisodeResult, by_part, read_values
from lactchain.data.intervals import error_sums, r2, resampled_interval, rmse, share_interval
from lactchain.models.model_cards import figure
from lactchain.run import Run
from lactchain.settings import EnvironmentConfig

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from lactchain.stages.run_pipeline import RunPipelineConfig
    from lactchain.stages.token_values import TrainValuesConfig
    from lactchain.stages.train_critic import TrainCriticConfig

Summary = dict[str, Any]


def success_figures(
    environment: EnvironmentConfig, results: list[EpisodeResult]
) -> Iterator[EvalResult]:
    """Figures of N > 0 episodes; where states are held back, those of each part as well."""
    for part, episodes in {"": results, **by_part(results)}.items():
        of, behind = f"{len(episodes):,} episodes", f"_{part}" if part else ""
        shares = {
            "success_rate": sum(r.success for r in episodes),
            "success_within_2_completions": sum(r.success and r.num_chains <= 2 for r in episodes),
        }
        for name, count in shares.items():
            interval = share_interval(count, len(episodes))
            yield figure(environment, name + behind, count / len(episodes), of, interval)
    solved = [(r.num_actions, r.shortest) for r in results if r.success and r.shortest is not None]
    if solved:
        ratio, of = lambda sums: sums[0] / sums[1], f"{len(solved):,} solved episodes"  # noqa: E731
        sums = np.array(solved)
        name, value = "actions_over_shortest", ratio(sums.sum(axis=0))
        yield figure(environment, name, value, of, resampled_interval(sums, ratio))


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
