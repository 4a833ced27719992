"""Vector environments with the settings that text and bootstrapping need."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv


def make_vector_env(
    id: str,
    num_envs: int,
    mode: Literal["vector_entry_point", "sync", "async"] | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Copies of a registered environment behind one `step`.

    Copies that end are reset in the same step, so `infos["final_obs"]` holds what they ended on,
    and no row is a dummy. The asynchronous mode does not use shared memory, through which text
    arrives empty.

    Args:
        id: a Gymnasium id.
        num_envs: number of copies.
        mode: one numpy batch, a loop in this process, or a process for each copy; None: the batch
            where the environment has one, else the loop. Processes pay only for slow environments.
        kwargs: arguments of the environment.

    Raises:
        ValueError: there is no such mode.
        gymnasium.error.Error: there is no such environment, or it has no such mode.
    """
    if mode is None:
        batched = gym.spec(id).vector_entry_point is not None
        mode = "vector_entry_point" if batched else "sync"
    vector_kwargs: dict[str, Any] = {}
    if mode != "vector_entry_point":
        vector_kwargs["autoreset_mode"] = AutoresetMode.SAME_STEP
    if mode == "async":
        vector_kwargs["shared_memory"] = False
    return gym.make_vec(id, num_envs, mode, vector_kwargs, **kwargs)
