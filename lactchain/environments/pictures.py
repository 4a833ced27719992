"""What a world draws of itself in reports and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lactchain.types import Trajectory


class Picture:
    """The pictures of one world; a subclass draws what can be seen there.

    Each returns HTML made by `lactchain.inspection.markup`, empty where there is nothing to draw.
    States are what `info["state"]` holds. A run folder may hold anything: what is no state of this
    world is not drawn.
    """

    def values(
        self,
        states: Sequence[Mapping[str, Any]],
        critic: Sequence[float],
        exact: Sequence[float] | None,
    ) -> str:
        """Values of N states by a critic, beside the true ones where these are known."""
        return ""

    def completions(
        self,
        states: Sequence[Mapping[str, Any]],
        values: Sequence[float],
        advantages: Sequence[Sequence[float]],
    ) -> str:
        """Values of N states, and advantages (N, A) of all completions, by a value model."""
        return ""

    def episode(
        self,
        trajectory: Trajectory,
        states: Sequence[Mapping[str, Any]] = (),
        values: Sequence[float] = (),
    ) -> str:
        """An episode; `values` of `states`, where there are any, may stand behind it."""
        return ""
