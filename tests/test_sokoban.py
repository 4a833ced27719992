"""Sokoban: rules against a second implementation, rooms that can be solved, and what is refused."""

import numpy as np
import pytest

from lactchain import ConfigError, language_env
from lactchain.environments.exact import shortest_paths
from lactchain_extras.sokoban import Sokoban, SokobanTables, distances_to_solved

AHEAD = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Rows and columns of up, right, down, left."""
ROOM_0 = "######\n#--+-#\n##--##\n##-$-#\n#---##\n######"


def pushed(drawn: str, action: int) -> str:
    """A room in letters behind an action, by the rules as people tell them."""
    cells = {(r, c): letter for r, row in enumerate(drawn.split("\n")) for c, letter in
             enumerate(row)}  # fmt: skip
    here = next(place for place, letter in cells.items() if letter in "@+")
    row, column = AHEAD[action]
    there, beyond = (here[0] + row, here[1] + column), (here[0] + 2 * row, here[1] + 2 * column)
    if cells[there] == "#" or (cells[there] in "$*" and cells[beyond] in "#$*"):
        return drawn
    if cells[there] in "$*":
        cells[beyond] = "*" if cells[beyond] == "." else "$"
    cells[here] = "." if cells[here] == "+" else "-"
    cells[there] = "+" if cells[there] in "*." else "@"
    width = drawn.index("\n")
    letters = "".join(cells[place] for place in sorted(cells))
    return "\n".join(letters[i : i + width] for i in range(0, len(letters), width))


@pytest.mark.parametrize("num_boxes", [1, 2])
def test_random_play_follows_the_rules(num_boxes):
    env = Sokoban(num_rooms=5, num_boxes=num_boxes, render_mode="ansi")
    draws = np.random.default_rng(0)
    num_pushes = 0
    for episode in range(20):
        env.reset(seed=episode)
        for action in draws.integers(4, size=40).tolist():
            before = env.render()
            _, reward, terminated, _, info = env.step(action)
            assert env.render() == pushed(before, action)
            assert info["bumped"] == (env.render() == before)
            placed = env.render().count("*") - before.count("*")
            assert terminated == ("$" not in env.render())
            assert reward == pytest.approx(-0.1 + placed + (10 if terminated else 0))
            num_pushes += before.count("$") > 0 and info["bumped"] is False
            if terminated:
                break
    assert num_pushes > 100


@pytest.mark.parametrize(("size", "num_boxes"), [(6, 1), (6, 2), (7, 1)])
def test_each_room_is_as_far_from_solved_forwards_as_backwards(size, num_boxes):
    tables = SokobanTables(size, num_boxes, num_rooms=4)
    forwards = dict(zip(tables.model.non_terminal, shortest_paths(tables.model), strict=True))
    starts = [*tables.start_states, len(tables.terminal)]
    for number, room in enumerate(tables.rooms):
        backwards = distances_to_solved(room)
        far = [d for d in map(forwards.get, range(*starts[number : number + 2])) if d is not None]
        assert {*far} - {np.inf} <= {*backwards.values()}
        assert forwards[starts[number]] == backwards[room.start] >= size
        # what leads nowhere is part of the world: a box in a corner, say
        assert np.inf in far


def test_rooms_are_numbered_and_equal_on_every_machine():
    env = Sokoban(num_rooms=3, render_mode="ansi")
    env.reset(options={"state": env.tables.state_fields(int(env.tables.start_states[0]))})
    assert env.render() == ROOM_0
    more, others = SokobanTables(num_rooms=5), SokobanTables(num_rooms=3, seed=1)
    assert [room.start for room in more.rooms[:3]] == [room.start for room in env.tables.rooms]
    assert [room.start for room in others.rooms] != [room.start for room in env.tables.rooms]


def test_a_transcript():
    env = language_env("lactchain/Sokoban-v0", {"num_rooms": 1})
    text, info = env.reset(seed=0)
    assert text.endswith(f"floor:\n{ROOM_0}")
    assert info["state"] == {"room": 0, "x": 3, "y": 1, "box_1_x": 3, "box_1_y": 3}
    text, reward, _, _, info = env.step('["right", "right"]')
    assert text.endswith(" Something was in the way.") and info["bumped"] == [False, True]
    assert reward == pytest.approx(-0.2) and info["positions"] == [[4, 1], [4, 1]]
    text, reward, terminated, _, _ = env.step('["left", "down", "left", "down", "down", "right"]')
    assert text.endswith("#--.-#\n##--##\n##-$-#\n#--@##\n######") and not terminated
    _, reward, terminated, _, info = env.step('["up", "up", "up"]')
    assert reward == pytest.approx(-0.2 + 1 + 10) and terminated and info["success"]
    assert info["executed"] == ["up", "up"]


def test_brief_shows_what_is_within_the_walls():
    env = language_env("lactchain/Sokoban-v0", {"num_rooms": 1}, template="brief")
    assert env.reset(seed=0)[0] == "- - + -\n# - - #\n# - $ -\n- - - #"


@pytest.mark.parametrize(("kwargs", "name"), [
    ({"size": 3}, "size"), ({"num_boxes": 0}, "num_boxes"), ({"num_rooms": 1.5}, "num_rooms"),
    ({"size": 6, "num_boxes": 5}, "size"), ({"size": 12, "num_boxes": 3}, "num_rooms"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(kwargs, name):
    with pytest.raises(ConfigError, match=f"{name}: expected"):
        language_env("lactchain/Sokoban-v0", kwargs)
