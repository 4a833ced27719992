"""Values and episodes on grids: how a critic or a value model sees cells, and where one went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from lactchain.data.evaluations import AnswerValues, StateValues
from lactchain.environments.gridworld import ORIENTATIONS
from lactchain.inspection import maps, plots
from lactchain.inspection.maps import Grid
from lactchain.inspection.markup import Markup, details, element, fields, gallery, join
from lactchain.inspection.run_view import ChainRecord, grid_position
from lactchain.types import Trajectory

MAX_GOALS = 3

Item = TypeVar("Item")


def value_maps(values: StateValues | None, grid: Grid | None) -> Markup:
    """The critic's values, the exact ones and their difference; on a grid, as maps."""
    if values is None or not values.states:
        return Markup("")
    facts: dict[str, Any] = {"states": len(values.states), "gamma": values.gamma}
    facts["discount per"] = values.discount_per
    overview = []
    if values.exact is not None:
        facts |= {"R²": values.r2, "RMSE": values.rmse}
        overview = [plots.scatter("critic over exact value", values.exact, values.critic, "exact")]
    summary = element("div", fields(facts), *overview, class_="gallery")
    if grid is not None and grid.goal is not None:
        return join((summary, _maps_of_maze(values, grid)))
    goals = [] if grid is None else _goals(values)
    folded = [
        details(f"goal at ({x}, {y})", _maps_of_goal(values, grid, (x, y)), is_open=n == 0)
        for n, (x, y) in enumerate(goals)
    ]
    return join((summary, *folded))


def move_maps(values: AnswerValues | None, grid: Grid | None) -> Markup:
    """In a maze, V of each cell, and Q and advantage of each move, as a value model has them."""
    if values is None or grid is None or grid.goal is None:
        return Markup("")
    if len(values.answers) != len(maps.SIDES):  # chains of moves are not drawn
        return Markup("")
    v = dict(_by_cell(values.states, values.values))
    advantages = dict(_by_cell(values.states, values.advantages))
    q = {cell: [v[cell] + advantage for advantage in row] for cell, row in advantages.items()}
    worth = [number for row in q.values() for number in row] + list(v.values())
    limits = min(worth), max(worth)
    largest = max(abs(number) for row in advantages.values() for number in row) or 1.0
    around = -largest, largest
    bars = (
        maps.colour_bar("V, Q", limits),
        maps.colour_bar("advantage", around, plots.DIVERGING),
    )
    pictures = (
        maps.value_map("V of each cell", grid, v, limits, grid.goal),
        maps.move_map("Q of each move, the best dotted", grid, q, limits),
        maps.move_map("advantage of each move", grid, advantages, around, plots.DIVERGING),
    )
    return join((gallery(bars), gallery(pictures)))


def episode_picture(
    trajectory: Trajectory,
    grid: Grid,
    records: Sequence[ChainRecord],
    values: StateValues | None,
    answer_values: AnswerValues | None,
) -> Markup:
    """Where an episode went: chain by chain, or in a maze as one way over the values of cells."""
    state = trajectory.infos[0]["state"]
    starts = [record.start for record in records]
    paths = [record.path for record in records]
    if grid.goal is not None:
        way = [starts[0], *(position for path in paths for position in path)]
        shades = {} if values is None else dict(_by_cell(values.states, values.critic))
        if answer_values is not None:
            shades = dict(_by_cell(answer_values.states, answer_values.values))
        return maps.replay(grid, way, shades)
    return maps.rollout(grid, starts, paths, (state["goal_x"], state["goal_y"]))


def _goals(values: StateValues) -> list[tuple[int, int]]:
    """A few of the goals, evenly spread."""
    states = [state for state in values.states if grid_position(state)]
    goals = sorted({(state["goal_x"], state["goal_y"]) for state in states})
    places = np.linspace(0, len(goals) - 1, min(MAX_GOALS, len(goals)))
    return [goals[round(place)] for place in places]


def _maps_of_goal(values: StateValues, grid: Grid, goal: tuple[int, int]) -> Markup:
    """Rows: critic, exact, error; columns: orientations."""
    both = [*values.critic, *(values.exact or ())]
    limits = min(both), max(both)
    bars = [maps.colour_bar("value", limits)]
    rows = [_map_row("critic", values.states, values.critic, grid, goal, limits)]
    if values.exact is not None:
        errors = np.subtract(values.critic, values.exact).tolist()
        largest = max(map(abs, errors)) or 1.0
        error_limits = -largest, largest
        bars.append(maps.colour_bar("error = critic − exact", error_limits, plots.DIVERGING))
        rows += [
            _map_row("exact", values.states, values.exact, grid, goal, limits),
            _map_row("error", values.states, errors, grid, goal, error_limits, plots.DIVERGING),
        ]
    return element("div", gallery(bars), *rows, class_="card")


def _map_row(
    name: str,
    states: Sequence[Mapping[str, Any]],
    values: Sequence[float],
    grid: Grid,
    goal: tuple[int, int],
    limits: tuple[float, float],
    palette: Sequence[plots.Shade] = plots.SEQUENTIAL,
) -> Markup:
    """One map for each orientation."""
    values_at: list[dict[tuple[int, int], float]] = [{} for _ in ORIENTATIONS]
    for state, value in zip(states, values, strict=True):
        if (state["goal_x"], state["goal_y"]) == goal:
            values_at[state["orientation"]][state["x"], state["y"]] = value
    return gallery(
        [
            maps.value_map(f"{name}, facing {heading}", grid, cells, limits, goal, palette)
            for heading, cells in zip(ORIENTATIONS, values_at, strict=True)
        ]
    )


def _maps_of_maze(values: StateValues, grid: Grid) -> Markup:
    """The critic's value of each cell, and the exact one."""
    both = [*values.critic, *(values.exact or ())]
    limits = min(both), max(both)
    named = {"critic": values.critic, "exact": values.exact}
    pictures = [
        maps.value_map(name, grid, dict(_by_cell(values.states, numbers)), limits, grid.goal)
        for name, numbers in named.items()
        if numbers is not None
    ]
    return gallery([maps.colour_bar("value", limits), *pictures])


def _by_cell(
    states: Sequence[Mapping[str, Any]], items: Sequence[Item]
) -> list[tuple[tuple[int, int], Item]]:
    """What belongs to each state of a maze, under its cell."""
    return [(grid_position(s), item) for s, item in zip(states, items, strict=True)]
