"""Agents of other libraries beside ours: evaluated alike, into a run folder of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lactchain.baselines.evaluation import FINAL_SEED, Act, evaluate_members, success_return
from lactchain.baselines.settings import WorldConfig
from lactchain.config.bounds import Bounded, Count
from lactchain.config.settings import RunConfig
from lactchain.runs.process import seed_everything
from lactchain.runs.run import Run


@dataclass(frozen=True)
class EvaluateAgentConfig(Bounded):
    """An evaluation, as a run of its own, of any agent: one of another library, say."""

    run: RunConfig = RunConfig(run_dir="runs/evaluate_agent")
    environment: WorldConfig = WorldConfig()
    num_eval_episodes: Count = 100
    """Greedy episodes, from the same seeds as those in other runs' summaries."""
    agent: str = ""
    """Who plays, for the reader of the report."""


def evaluate_run(
    act: Act, config: EvaluateAgentConfig, costs: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Evaluates any agent into a run folder, of which a report can be written; its summary.

    Args:
        act: observations (1, N, …) to actions (1, N, …), such as `sb3_act(model)`.
        config: where to, and in which environment.
        costs: what learning took, for tables beside other runs: `num_env_steps`, environment
            steps, and `time/cpu_seconds`.
    """
    world, count = config.environment, config.num_eval_episodes
    with Run.of(config) as run:
        if run.finished:
            return run.summary
        seed_everything(config.run.seed, config.run.threads)
        result = evaluate_members(act, world.id, 1, count, FINAL_SEED, **world.kwargs)
        figures = result.summary(success_return=success_return(world))
        run.log({f"eval/{key}": value for key, value in figures.items()}, step=0)
        summary = {"agent": config.agent, "num_episodes": count, **figures, **(costs or {})}
        run.finish(summary)
        return summary


def sb3_act(model: Any) -> Act:
    """A Stable-Baselines3 model as `evaluate_members` takes it; its predictions are deterministic.

    Continuous actions are rescaled to [−1, 1], as the evaluator's environments take them.
    Observations are normalised as they were when the model learnt, if they were (`VecNormalize`):
    a model that was loaded knows of that if it was given its environment.
    """
    space, normalizer = model.action_space, model.get_vec_normalize_env()

    def act(observations: np.ndarray) -> np.ndarray:
        flat = observations.reshape(-1, *observations.shape[2:])
        if normalizer is not None:
            flat = normalizer.normalize_obs(flat)
        actions, _ = model.predict(flat, deterministic=True)
        actions = actions.reshape(*observations.shape[:2], *actions.shape[1:])
        if actions.dtype.kind != "f":
            return actions
        return (2.0 * (actions - space.low) / (space.high - space.low) - 1.0).astype(np.float32)

    return act
