"""What a world draws of itself in reports and notebooks."""

from collections.abc import Sequence

from lactchain.data.evaluations import CompletionValues, StateValues
from lactchain.environments.views import State
from lactchain.types import Trajectory


class Picture:
    """The pictures of one world; a subclass draws what can be seen there.

    Each returns HTML made by `lactchain.inspection.markup`, empty where there is nothing to draw.
    A run folder may hold anything: what is no state of this world is not drawn.
    """

    def values(self, values: StateValues) -> str:
        """Values of states by a critic, beside the true ones where these are known."""
        return ""

    def completions(self, values: CompletionValues) -> str:
        """Values of states, and advantages of all completions, by a value model."""
        return ""

    def episode(self, trajectory: Trajectory, behind: Sequence[tuple[State, float]] = ()) -> str:
        """An episode; the values of states that are `behind` it may be shown as well."""
        return ""
