"""What a critic or a value model says of states: figures, and the pictures of the world."""

from __future__ import annotations

from typing import Any

from lactchain.data.evaluations import AnswerValues, StateValues
from lactchain.environments.pictures import Picture
from lactchain.inspection import plots
from lactchain.inspection.markup import Markup, element, fields, join
from lactchain.types import Trajectory


def state_values(values: StateValues | None, picture: Picture) -> Markup:
    """The critic's values, the exact ones and their difference."""
    if values is None or not values.states:
        return Markup("")
    facts: dict[str, Any] = {"states": len(values.states), "gamma": values.gamma}
    facts["discount per"] = values.discount_per
    overview = []
    if values.exact is not None:
        facts |= {"R²": values.r2, "RMSE": values.rmse}
        overview = [plots.scatter("critic over exact value", values.exact, values.critic, "exact")]
    summary = element("div", fields(facts), *overview, class_="gallery")
    return join((summary, picture.values(values.states, values.critic, values.exact)))


def answer_values(values: AnswerValues | None, picture: Picture) -> Markup:
    """What each answer to each state is worth to a value model, where the world can draw it."""
    if values is None or not values.states:
        return Markup("")
    return join((picture.answers(values.states, values.values, values.advantages),))


def episode(
    trajectory: Trajectory,
    picture: Picture,
    values: StateValues | None,
    told: AnswerValues | None,
) -> Markup:
    """Where an episode went, over the values of a value model, else of a critic, if there are."""
    if told is not None:
        drawn = picture.episode(trajectory, told.states, told.values)
    elif values is not None:
        drawn = picture.episode(trajectory, values.states, values.critic)
    else:
        drawn = picture.episode(trajectory)
    return join((drawn,))
