"""Which rounds of a pipeline count: those that are not worse than the best one before them.

Rounds are compared on start states that no figure of the run is reported of: who picks the best of
several rounds by a sample has picked its luck, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.config.settings import GuidedActorConfig, RunConfig
from lactchain.data.evaluations import EpisodeResult, read_episodes
from lactchain.data.figures import practised
from lactchain.data.intervals import paired_interval
from lactchain.runs.run import Run
from lactchain.stages import evaluate
from lactchain.stages.evaluate import EvaluateConfig, EvaluationConfig
from lactchain.stages.pipeline_config import RunPipelineConfig

MOST_UNDONE = 2
"""Rounds in a row that are undone before the run ends."""

TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}
"""How the start states are played, each once: a player that never wanders tells less of what was
learnt than one that is asked to."""


class Selection:
    """Plays the rounds of a pipeline on their own start states, and compares them."""

    def __init__(self, config: RunPipelineConfig, run: Run) -> None:
        self.config, self.run = config, run

    def play(self, number: int, actor: GuidedActorConfig, folder: RunConfig) -> dict[str, float]:
        """Plays a round's actor, and returns its figures: `selection/<how>/<figure>`.

        Args:
            folder: of the round's selection; that of each way to play lies in it.
        """
        found = {}
        for how, temperature in TEMPERATURES.items():
            config = EvaluateConfig(
                run=replace(folder, run_dir=f"{folder.run_dir}/{how}"),
                environment=self.config.environment,
                actor=replace(actor, temperature=temperature),
                evaluation=EvaluationConfig(
                    num_envs=self.config.evaluation.num_envs,
                    num_starts=self.config.selection.num_starts,
                    sample="selection",
                    num_samples=0,
                ),
            )
            figures = evaluate.main(config)
            for name in ("success_rate", "success_within_2_chains"):
                found[f"selection/{how}/{name}"] = practised(figures, name)
        return found

    def is_worse(self, number: int, best: int) -> bool:
        """Whether a round is worse than another: its interval of the difference excludes equality.

        In greedy and in sampled success, or in greedy success within two completions; never in
        greedy success alone, which a player that stops to wander loses by getting better.
        """

        def falls(how: str, merit: Callable[[EpisodeResult], bool]) -> bool:
            before, after = (self._results(n, how) for n in (best, number))
            _, high = paired_interval(_of(before, merit), _of(after, merit))
            return high < 0

        return falls("greedy", _within_two) or (
            falls("greedy", _succeeds) and falls("sampled", _succeeds)
        )

    def _results(self, number: int, how: str) -> list[EpisodeResult]:
        folder = Path(self.run.directory) / f"round_{number}/selection/{how}"
        return [r for r in read_episodes(folder / "episodes.json") if not r.held_back]


def score(figures: dict[str, Any]) -> float:
    """What rounds that count are compared by: success, greedy and sampled, and that within two."""
    names = ("greedy/success_rate", "sampled/success_rate", "greedy/success_within_2_chains")
    return sum(figures[f"selection/{name}"] for name in names)


def _succeeds(result: EpisodeResult) -> bool:
    return result.success


def _within_two(result: EpisodeResult) -> bool:
    return result.success and result.num_chains <= 2


def _of(results: Sequence[EpisodeResult], merit: Callable[[EpisodeResult], bool]) -> np.ndarray:
    return np.array([float(merit(result)) for result in results])
