"""Sokoban: numbered rooms, made by playing backwards from solved ones, so that each can be solved.

The exact model holds all that can be reached in each room, the dead ends too. It is the solver:
`exact.shortest_paths` says how many actions a state is from solved, and infinity where a box is
stuck.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from math import comb
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lactchain.environments.faults import at_least_one
from lactchain.environments.views import State, TextView
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain.worlds.cells import CellTables, CellWorld, cell_view, neighbours

STEP, ON, OFF, SOLVED = -0.1, 1.0, -1.0, 10.0
"""Rewards, as gym-sokoban has them: of an action, of a box that comes onto a target or leaves one,
and of the last one that comes onto its own."""

WALL, FLOOR, TARGET, BOX, PLACED, PLAYER, PLAYER_ON = range(7)
"""What a cell of an observation holds."""
LETTERS = "#-.$*@+"
"""The same in XSB, the letters in which Sokoban's rooms are exchanged; a floor is `-` there."""
KINDS = {WALL: "wall", TARGET: "goal", BOX: "item", PLACED: "hit", PLAYER_ON: "goal"}
"""The same in pictures."""

MOST_PLACES = 1_000_000
"""Of player and boxes in all rooms together: tables of more take too much memory."""

Place = tuple[int, tuple[int, ...]]
"""The cells of player and boxes, the latter ascending."""


def register() -> None:
    """Registers the id."""
    gym.register("lactchain/Sokoban-v0", entry_point="lactchain_extras.sokoban:Sokoban")


class Room(NamedTuple):
    """A room, and where one begins in it.

    Attributes:
        free: (size, size), whether a cell is no wall; those that are free are numbered row by row.
        near: (C, 4), the cells around each, as `neighbours` has them.
        targets: cells.
        start: where player and boxes are at first.
    """

    free: np.ndarray
    near: list[list[int]]
    targets: tuple[int, ...]
    start: Place

    def solved(self, place: Place) -> bool:
        """Whether every box is on a target."""
        return place[1] == self.targets

    def after(self, place: Place, action: int) -> Place:
        """Where an action leads; what cannot be done changes nothing."""
        player, boxes = place
        ahead = self.near[player][action]
        if ahead not in boxes:
            return place if ahead < 0 else (ahead, boxes)
        beyond = self.near[ahead][action]
        if beyond < 0 or beyond in boxes:
            return place
        return ahead, moved(boxes, ahead, beyond)

    def before(self, place: Place) -> Iterator[Place]:
        """From where one action leads here: the player came, or came pushing a box."""
        player, boxes = place
        for action in range(4):
            behind = self.near[player][(action + 2) % 4]
            if behind < 0 or behind in boxes:
                continue
            yield behind, boxes
            ahead = self.near[player][action]
            if ahead in boxes:
                yield behind, moved(boxes, ahead, player)


def moved(boxes: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    """The boxes when one of them is in another cell."""
    return tuple(sorted(new if box == old else box for box in boxes))


def make_room(size: int, num_boxes: int, seed: int, number: int) -> Room:
    """The room of a number under a seed.

    One begins at random in a state that is at least half as far from solved as any, and at least as
    many actions as a side has cells. Rooms are drawn until one has such a state.
    """
    draws = np.random.default_rng([seed, number])
    while True:
        free = np.zeros((size, size), dtype=bool)
        free[1:-1, 1:-1] = True
        inner = np.flatnonzero(free)
        walls = draws.choice(inner, draws.integers(len(inner) // 4 + 1), replace=False)
        free.flat[walls] = False
        near = neighbours(free)
        if len(near) < 2 * num_boxes + 2 or not _in_one_piece(near):
            continue
        targets = tuple(sorted(draws.choice(len(near), num_boxes, replace=False).tolist()))
        room = Room(free, near.tolist(), targets, (0, ()))
        distances = distances_to_solved(room)
        least = max(size, max(distances.values()) / 2)
        far = [place for place, distance in distances.items() if distance >= least]
        if far:
            return room._replace(start=far[draws.integers(len(far))])


def _in_one_piece(near: np.ndarray) -> bool:
    """Whether there are ways between all cells."""
    reached, frontier = {-1, 0}, [0]
    for cell in frontier:  # which grows
        new = {*near[cell].tolist()} - reached
        reached |= new
        frontier += new
    return len(frontier) == len(near)


def distances_to_solved(room: Room) -> dict[Place, int]:
    """Fewest actions from each state that is no dead end, found by going backwards."""
    cells = range(len(room.near))
    distances = {(cell, room.targets): 0 for cell in cells if cell not in room.targets}
    frontier = [*distances]
    for place in frontier:  # which grows
        for earlier in room.before(place):
            if earlier not in distances:
                distances[earlier] = distances[place] + 1
                frontier.append(earlier)
    return distances


class SokobanTables(CellTables):
    """The dynamics of all rooms, a state for each that can be reached; arguments as `Sokoban`'s.

    Attributes:
        rooms: by their numbers.
        maps: (S, size, size), what each cell holds.

    Raises:
        ValueError: an argument is not of its kind, or there are too many states.
    """

    place = "a room in which the boxes are not all on targets yet"

    def __init__(self, size: int = 6, num_boxes: int = 1, num_rooms: int = 100, seed: int = 0):
        self.size, boxes = at_least_one("size", size), at_least_one("num_boxes", num_boxes)
        cells = (size - 2) ** 2
        if cells < 4 * boxes:
            raise ValueError(f"size: expected room for {boxes} boxes within the walls, got {size}")
        count = at_least_one("num_rooms", num_rooms) * cells * comb(cells, boxes)
        if count > MOST_PLACES:
            most = f"at most {MOST_PLACES:,} places of player and boxes in all rooms"
            got = f"{num_rooms} of this kind have {count:,}; ask for fewer or smaller ones"
            raise ValueError(f"num_rooms: expected {most}, {got}")
        spots = [f"box_{number}_{axis}" for number in range(1, boxes + 1) for axis in "xy"]
        self.fields = ("room", "x", "y", *spots)
        self.rooms = [make_room(size, boxes, seed, number) for number in range(num_rooms)]
        places: list[tuple[int, Place]] = []
        successors: list[list[int]] = []
        starts = []
        for number, room in enumerate(self.rooms):
            first, found, frontier = len(places), {room.start: len(places)}, [room.start]
            for place in frontier:  # which grows
                after = [place if room.solved(place) else room.after(place, a) for a in range(4)]
                for new in after:
                    if new not in found:
                        found[new] = first + len(found)
                        frontier.append(new)
                successors.append([found[new] for new in after])
            places += [(number, place) for place in frontier]
            starts.append(first)
        self._fill(places, np.array(successors))
        self.start_states = np.array(starts)

    def _fill(self, places: list[tuple[int, Place]], next_state: np.ndarray) -> None:
        """The tables, from where everything is in each state and what follows."""
        cells = [np.argwhere(room.free)[:, ::-1] for room in self.rooms]  # x, y
        rows = [[n, *cells[n][[player, *boxes]].ravel()] for n, (player, boxes) in places]
        self.observations, targets = np.array(rows), [{*room.targets} for room in self.rooms]
        placed = np.array([len(targets[n].intersection(boxes)) for n, (_, boxes) in places])
        self.terminal = placed == len(self.rooms[0].targets)
        self.next_state = next_state
        gained = placed[next_state] - placed[:, None]
        self.rewards = STEP + np.where(gained > 0, ON, np.where(gained < 0, OFF, 0.0))
        self.rewards += np.where(self.terminal[next_state], SOLVED, 0.0)
        self.maps = np.stack([self._map(number, *place) for number, place in places])

    def _map(self, number: int, player: int, boxes: tuple[int, ...]) -> np.ndarray:
        room = self.rooms[number]
        held = np.full(len(room.near), FLOOR, dtype=np.uint8)
        held[[*room.targets]] = TARGET
        held[player] = PLAYER_ON if player in room.targets else PLAYER
        for box in boxes:
            held[box] = PLACED if box in room.targets else BOX
        drawn = np.full(room.free.shape, WALL, dtype=np.uint8)
        drawn[room.free] = held
        return drawn


class Sokoban(CellWorld):
    """A player pushes boxes onto targets; there is no pulling.

    ## Description
    A room of floor within walls. The player moves to a free cell next to it. A box on that cell is
    pushed on, if the cell beyond is free. A box in a corner is stuck.

    ## Action Space
    `Discrete(4)`: 0 up, 1 right, 2 down, 3 left.

    ## Observation Space
    `Box(0, 6, (size · size,))`: for each cell, row by row, wall, floor, target, box, box on a
    target, player, player on a target.

    ## Starting State
    The start of a room, drawn uniformly. `reset(options={"state": {"room": 3, "x": 1, "y": 2,
    "box_1_x": 2, "box_1_y": 2}})` starts in a given one; (0, 0) is the upper left cell.

    ## Rewards
    gym-sokoban's: −0.1 for an action, 1 for a box that comes onto a target, −1 for one that leaves
    one, 10 when all are on targets.

    ## Episode End
    Terminated: all boxes are on targets. Truncated: after `max_steps` actions.

    ## Information
    - `bumped`: the action changed nothing. False on reset.

    ## Arguments
    - `size`: of a room with its walls, on each side. `num_boxes`: boxes, and targets.
    - `num_rooms`: rooms are numbered from 0. `seed`: which rooms; room 5 of a seed is the same
      however many there are.
    - `max_steps`: time limit. `render_mode`: "ansi", "rgb_array" or None.

    Raises `ValueError` if an argument does not fit.
    """

    def __init__(
        self, *, max_steps: int = 100, render_mode: str | None = None, **world: Any
    ) -> None:
        super().__init__(SokobanTables.shared(**world), max_steps, render_mode)
        self.observation_space = spaces.Box(0, len(LETTERS) - 1, (self.tables.size**2,), np.uint8)

    def _characters(self) -> str:
        return written(self.drawn)

    def text_view(self) -> TextView:
        """The same world in letters.

        Fields: map (the room with its walls), cells (what is within the outer walls, letters
        apart).
        """
        size = self.tables.size
        return cell_view(
            slice(1, 3),
            action_names=("up", "right", "down", "left"),
            template="Push every box ($) onto a target (.). You are @, or + on a target; * is a box"
            " on a target, # a wall, - floor:\n{map}{feedback}",
            brief="{cells}",
            describe=_describe,
            bump_feedback=" Something was in the way.",
            max_chains=8,  # of some actions each: who needs more has got stuck
            picture=Picture(size, size, partial(_scene, self.tables)),
        )

    @property
    def drawn(self) -> np.ndarray:
        """What each cell holds, (size, size)."""
        return self.tables.maps[self.state]

    def _observation(self) -> np.ndarray:
        return self.drawn.flatten()


def written(drawn: np.ndarray, between: str = "") -> str:
    """A map in letters, row by row."""
    return "\n".join(between.join(LETTERS[held] for held in row) for row in drawn.tolist())


def _describe(env: gym.Env, observation: np.ndarray, info: Mapping[str, Any]) -> dict[str, object]:
    drawn = env.unwrapped.drawn
    return {"map": written(drawn), "cells": written(drawn[1:-1, 1:-1], " ")}


def _scene(tables: SokobanTables, state: State) -> Scene:
    """What a state looks like; each room has walls of its own."""
    drawn = tables.maps[tables.state_number(state)]
    marks = (
        Mark(x, y, KINDS[held], "▣" if held in (BOX, PLACED) else "")
        for (y, x), held in np.ndenumerate(drawn)
        if held in KINDS
    )
    return Scene((state["x"], state["y"]), tuple(marks), f"room {state['room']}")
