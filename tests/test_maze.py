"""The maze: LMRL-Gym's rules and texts, other layouts, and what is refused."""

import numpy as np
import pytest

from lactchain import ConfigError, EnvironmentConfig, OptimalChains, language_env, make_language_env
from lactchain.environments.exact import optimal_values, shortest_paths
from lactchain_extras.maze import ACTION_NAMES, PARTIAL_TEMPLATE, TERSE_TEMPLATE, Maze, MazeTables

# Transcribed by hand from LMRL-Gym's list of optimal directions.
DIRECTIONS = {
    (1, 1): 3, (1, 2): 3, (1, 3): 1, (1, 4): 2, (1, 5): 2, (1, 7): 3, (1, 8): 3, (1, 9): 1,
    (1, 10): 2, (1, 11): 2, (2, 3): 1, (3, 3): 1, (4, 3): 1, (5, 3): 3, (5, 4): 3, (5, 5): 3,
    (5, 6): 1, (6, 6): 1, (7, 6): 1, (5, 7): 2, (5, 8): 2, (5, 9): 2, (4, 9): 1, (3, 9): 1,
    (2, 9): 1,
}  # fmt: skip


def at(row, column):
    return {"state": {"row": row, "column": column}}


def spoken(**kwargs):
    return language_env("lactchain/Maze-v0", extractor="utterance", **kwargs)


def test_a_transcript_of_the_fully_observed_maze():
    env = spoken()
    goal = "The goal is at position 8, 6. Your current position is at position "
    assert env.reset(options=at(5, 5))[0] == f"{goal}5, 5. There are walls above you, below you.\n"
    for completion, reward, said in (
        ("move up\n", -1, "5, 5. There are walls above you, below you.\n"),
        ("move right\n", -1, "5, 6. There is a wall above you.\n"),
        ("move down\n", -1, "6, 6. There are walls to your right, to your left.\n"),
        ("go down\n", -4, "6, 6. There are walls to your right, to your left.\n"),
        ("move down\n", -1, "7, 6. There are walls to your right, to your left.\n"),
    ):
        assert env.step(completion)[:4] == (goal + said, reward, False, False)
    *ended, info = env.step("move down\n")
    assert ended == ["Success\n", 0, True, False] and info["success"]


def test_a_transcript_of_the_partially_observed_maze():
    env = spoken(template=PARTIAL_TEMPLATE, history=40)
    first = "There are walls to your left, above you, below you.\n"
    then = "There are walls above you, below you.\n"
    assert env.reset(options=at(1, 1))[0] == first
    assert env.step("move right\n")[0] == f"{first}move right\n{then}"
    for _ in range(30):
        text = env.step("move up\n")[0]
    assert text.count("\n") == 40 and text.startswith("move up\n")
    assert env.step("up!")[0] == then  # wiped
    assert env.step("move up\n")[0].count("\n") == 3


def test_walls_may_be_told_in_letters_and_digits_of_a_coordinate_stand_apart():
    env = spoken(template=TERSE_TEMPLATE)
    said = [env.reset(options=at(*cell))[0] for cell in ((1, 1), (1, 3), (2, 3))]
    assert said == ["L A B\n", "A\n", "R L\n"]
    text = spoken().reset(options=at(1, 10))[0]
    assert "position 1, 1 0. There are walls above you, below you." in text
    for template, end in ((TERSE_TEMPLATE, "-\n"), (None, "There are no walls near you.\n")):
        open_space = spoken(env_kwargs={"layout": ["000"] * 3, "goal": [0, 0]}, template=template)
        assert open_space.reset(options=at(1, 1))[0].endswith(end)


@pytest.mark.parametrize("completion", ["move up\n", "nonsense"])
def test_the_move_after_the_hundredth_is_a_failure(completion):
    env = spoken()
    env.reset(options=at(1, 1))
    rewards = [env.step("move up\n")[1] for _ in range(99)]
    text, reward, terminated, truncated, _ = env.step("move right\n")
    assert not (terminated or truncated) and "position 1, 2" in text
    *ended, info = env.step(completion)
    assert ended == ["Failure\n", -1, False, True] and sum(rewards) + reward + ended[1] == -101
    assert info["state"] == {"row": 1, "column": 2} and not info["success"]
    assert info["shows_state"] is False


def test_the_hundredth_move_may_reach_the_goal_and_failure_may_be_terminal():
    env = Maze(start=(7, 6))
    env.reset()
    assert [env.step(2)[1:4] for _ in range(99)] == [(-1.0, False, False)] * 99
    assert env.step(1)[1:4] == (0.0, True, False)
    env = Maze(max_moves=1, failure_terminates=True)  # as in the reference
    env.reset(seed=0)
    env.step(0)
    assert env.step(0)[2:4] == (True, False)


def test_optimal_moves_and_the_best_mean_return_are_those_of_the_reference():
    env = spoken()
    policy = OptimalChains(env)
    for (row, column), action in DIRECTIONS.items():
        text, _ = env.reset(options=at(row, column))
        assert policy.act([text], [0])[0].text == f"{ACTION_NAMES[action]}\n"
    assert {(s["row"], s["column"]) for s in env.view_states()} == {*DIRECTIONS}

    tables = MazeTables()
    assert -np.mean(shortest_paths(tables.model) - 1) == pytest.approx(-6.84)
    assert optimal_values(tables.model, 1.0).mean() == pytest.approx(-6.84)


def test_several_moves_may_stand_in_one_completion():
    env = language_env("lactchain/Maze-v0")
    env.reset(options=at(5, 5))
    *_, terminated, _, info = env.step('["move right", "move down", "move down", "move down"]')
    assert terminated and info["rewards"] == [-1, -1, -1, 0]
    assert info["positions"] == [[6, 5], [6, 6], [6, 7], [6, 8]]  # x first


def test_start_and_goal_can_be_chosen():
    env = Maze(layout=["0010", "0000"], start=(0, 3), goal=(0, 0), render_mode="ansi")
    assert env.reset()[0].tolist() == [0, 3]
    assert env.render() == "G.#@\n...."
    assert spoken(env_kwargs={"start": [1, 2]}).start_states() == [{"row": 1, "column": 2}]
    assert spoken().start_states() == spoken().view_states()
    text = spoken(env_kwargs={"goal": [8.0, 6.0], "start": [1.0, True]}).reset()[0]
    assert text.startswith("The goal is at position 8, 6. Your current position is at position 1,")
    no_way = Maze(layout=["00100"], goal=(0, 0), start=(0, 1))  # from other cells
    assert no_way.reset()[0].tolist() == [0, 1]


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"layout": "labyrinth"}, r"layout: expected one of \['double_t', 'u'\]"),
    ({"layout": []}, "layout: expected rows"),
    ({"layout": {"a": 1}}, "layout: expected rows"),
    ({"layout": ["00", "0"]}, "layout: row 1: expected 2 characters 0 or 1"),
    ({"layout": ["00", "0x"]}, "layout: row 1: .* got '0x'"),
    ({"layout": ["00", 10]}, "layout: row 1"),
    ({"layout": ["00", "00"]}, "goal: expected row, column"),
    ({"goal": 5}, "goal: expected row, column of a free cell, got 5"),
    ({"goal": [[8], 6]}, "goal: expected row, column of a free cell"),
    ({"goal": (0, 0)}, "goal: expected row, column of a free cell"),
    ({"max_moves": 0}, "max_moves: expected a whole number of at least 1, got 0"),
    ({"max_moves": "x"}, "max_moves: expected a whole number"),
    ({"start": (0, 0)}, "start: expected row, column of a free cell"),
    ({"start": (8, 6)}, "start: expected a free cell other than the goal"),
    ({"layout": ["00100"], "goal": (0, 0)}, r"reachable .* from {'row': 0, 'column': 3}"),
])  # fmt: skip
def test_impossible_mazes_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        Maze(**kwargs)
    with pytest.raises(ConfigError, match=f"kwargs: lactchain/Maze-v0 .*{message}"):
        make_language_env(EnvironmentConfig("lactchain/Maze-v0", kwargs))


def test_other_states_and_actions_are_refused():
    env = Maze()
    for state in ({"row": 0, "column": 0}, {"row": 1}, {"row": [1], "column": 1}, [1, 1], None):
        with pytest.raises(ValueError, match="state: expected row, column of a free cell"):
            env.reset(options={"state": state})
    with pytest.raises(ValueError, match="state: expected another cell than the goal"):
        env.reset(options=at(8, 6))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action: expected one of"):
        env.step(4)
