"""Agents of other libraries, as `lactchain.baselines.evaluation` plays them."""

from typing import Any

import numpy as np

from lactchain.baselines.evaluation import Act


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
