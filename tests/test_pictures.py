"""Worlds describe what is seen of their states; what is no state of theirs is not drawn."""

import pytest
from run_folders import MAZE, write_maze_run

from lactchain import language_env, open_run
from lactchain.inspection.pictures import Mark, Picture, Scene
from lactchain.storage.manifests import write_run_file
from lactchain_extras.explorer.report import render

GRID = {"x": 0, "y": 1, "orientation": 3, "goal_x": 2, "goal_y": 3}
SCENES = {
    "lactchain/GridWorld-v0": (GRID, Scene((0, 1, 3), (Mark(2, 3, "goal"),), "goal at (2, 3)")),
    "lactchain/Maze-v0": ({"row": 4, "column": 3}, Scene((3, 4))),
    "FrozenLake-v1": ({"state": 6}, Scene((2, 1))),
    "CliffWalking-v1": ({"state": 25}, Scene((1, 2))),
    # 328 of Taxi's own documentation: row 3, column 1, waiting at yellow, for red
    "Taxi-v4": (
        {"state": 328},
        Scene((1, 3), (Mark(0, 0, "goal"), Mark(0, 4, "item", "☺")), "yellow → red"),
    ),
    # a guess has five letters
    "lactchain/Wordle-v0": ({"guesses": ["ab", "zz z"], "feedback": ["gb", ""]}, None),
}


def picture_of(env_id: str) -> Picture:
    return language_env(env_id).view.picture


@pytest.mark.parametrize("env_id", SCENES)
def test_a_state_is_seen_as_it_is(env_id):
    state, scene = SCENES[env_id]
    assert picture_of(env_id).look(state) == scene


@pytest.mark.parametrize("env_id", SCENES)
@pytest.mark.parametrize("state", [None, {}, [], "x", {"x": "</script>"}, {"state": 10**9}])
def test_what_is_no_state_of_a_world_is_not_drawn(env_id, state):
    assert picture_of(env_id).look(state) is None


def test_guesses_have_a_row_each_and_what_was_none_is_struck():
    game = {"guesses": ["crane", "xxzz"], "feedback": ["gybbb", ""]}
    marks = picture_of("lactchain/Wordle-v0").look(game).marks
    assert [mark.kind for mark in marks] == ["hit", "near", "miss", "miss", "miss", "struck"]
    assert [mark.text for mark in marks] == [*"CRANE", "xxzz"]


def test_backgrounds_are_what_the_worlds_are_made_of():
    def places(env_id, kind):
        return {mark[:2] for mark in picture_of(env_id).background if mark.kind == kind}

    assert places("CliffWalking-v1", "danger") == {(x, 3) for x in range(1, 11)}
    assert places("FrozenLake-v1", "danger") == {(1, 1), (3, 1), (3, 2), (0, 3)}
    assert places("Taxi-v4", "fence") == {(1, 0), (1, 1), (0, 3), (0, 4), (2, 3), (2, 4)}


@pytest.mark.parametrize(("template", "fog"), [(None, "false"), ("{walls}\n", "true")])
def test_there_is_fog_where_an_actor_reads_no_more_than_what_is_around_it(tmp_path, template, fog):
    run = write_maze_run(tmp_path / "run")
    environment = {"id": MAZE.id, "extractor": MAZE.extractor, "template": template}
    write_run_file(run, {"config": {"environment": environment}})
    assert f'"fog": {fog}' in render(open_run(run))
