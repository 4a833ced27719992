"""What an agent of MiniGrid sees, without copies of its map.

`MiniGridEnv.gen_obs_grid` shows the same, but copies the view and turns it up to four times, which
takes longer than a step of the level.
"""

from typing import Any

from minigrid.core.world_object import Wall

STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""(dx, dy) of the directions, which MiniGrid numbers so."""
OUTSIDE = Wall()
"""What a view shows beyond the edge of the map."""


def seen(level: Any) -> tuple[list[tuple[int, int, Any]], set[tuple[int, int]]]:
    """What is seen but for floor, the nearest first, and walls; cells ahead and to the right."""
    half, rows = level.agent_view_size // 2, _view(level)
    visible = [[True] * len(row) for row in rows] if level.see_through_walls else _visible(rows)
    things, walls = [], set()
    for ahead, (row, is_seen) in enumerate(zip(rows, visible, strict=True)):
        for right, (cell, seen) in enumerate(zip(row, is_seen, strict=True), -half):
            if cell is None or not seen or cell.type == "floor":
                continue
            if cell.type == "wall":
                walls.add((ahead, right))
            elif ahead or right:  # what lies under the agent is not seen
                things.append((ahead, right, cell))
    things.sort(key=lambda thing: (thing[0] + abs(thing[1]), *thing[:2]))
    return things, walls


def _view(level: Any) -> list[list[Any]]:
    """The cells before the agent: row by row ahead, in each from the left to the right."""
    grid, size = level.grid, level.agent_view_size
    (x, y), (east, south), half = level.agent_pos, STEPS[level.agent_dir], size // 2

    def cell(across: int, down: int) -> Any:
        inside = 0 <= across < grid.width and 0 <= down < grid.height
        return grid.grid[down * grid.width + across] if inside else OUTSIDE

    return [
        [
            cell(x + ahead * east - right * south, y + ahead * south + right * east)
            for right in range(-half, half + 1)
        ]
        for ahead in range(size)
    ]


def _visible(rows: list[list[Any]]) -> list[list[bool]]:
    """Which cells of a view are seen, as `Grid.process_vis` spreads sight from the agent."""
    size = len(rows)
    visible = [[False] * size for _ in range(size + 1)]  # one row more than is asked for
    visible[0][size // 2] = True
    for ahead, row in enumerate(rows):
        here, beyond = visible[ahead], visible[ahead + 1]
        clear = [cell is None or cell.see_behind() for cell in row]
        for places, side in ((range(size - 1), 1), (range(size - 1, 0, -1), -1)):
            for place in places:
                if here[place] and clear[place]:
                    here[place + side] = beyond[place] = beyond[place + side] = True
    return visible[:size]
