"""The grid world: its rules, and that its views play one and the same dynamics."""

from types import SimpleNamespace

import numpy as np
import pytest

from lactchain.data.episodes import all_episodes, sampled_episodes
from lactchain.environments.language import LanguageEnv
from lactchain.worlds.gridworld import ORIENTATIONS, GridTables, GridWorld

FORWARD, LEFT = 0, 1
UP, TO_RIGHT, DOWN, TO_LEFT = range(4)
WORLDS = [
    {}, {"size": 3, "max_steps": 5},
    {"width": 5, "height": 2, "turn_right": True, "reward": "founding"},
    {"size": 5, "walls": [(1, 1), (2, 1), (3, 3)], "goal": (4, 4), "max_steps": 20},
    {"size": 4, "start": (0, 0, TO_RIGHT), "turn_right": True},
]  # fmt: skip


def at(x, y, orientation, goal=(3, 3)):
    pose = {"x": x, "y": y, "orientation": orientation}
    return {"state": pose | {"goal_x": goal[0], "goal_y": goal[1]}}


@pytest.mark.parametrize("kwargs", WORLDS)
def test_tables_equal_the_rules_written_out(kwargs):
    tables = GridTables(**{k: v for k, v in kwargs.items() if k != "max_steps"})
    steps = {UP: (0, -1), TO_RIGHT: (1, 0), DOWN: (0, 1), TO_LEFT: (-1, 0)}
    for state, (x, y, orientation, goal_x, goal_y) in enumerate(tables.observations.tolist()):
        dx, dy = steps[orientation]
        ahead = (x + dx, y + dy)
        free = 0 <= ahead[0] < tables.width and 0 <= ahead[1] < tables.height
        free = free and ahead not in tables.walls
        expected = [(*(ahead if free else (x, y)), orientation)]
        expected += [(x, y, (orientation + turn) % 4) for turn in (-1, 1)]
        for action, after in enumerate(tables.next_state[state]):
            assert tables.observations[after].tolist() == [*expected[action], goal_x, goal_y]
            assert (after == state) == (action == FORWARD and not free)
            reached = expected[action][:2] == (goal_x, goal_y)
            founding = kwargs.get("reward") == "founding"
            assert tables.rewards[state, action] == ([-1, 100] if founding else [0, 1])[reached]
        assert tables.state_number(tables.state_fields(state)) == state
        assert tables.terminal[state] == ((x, y) == (goal_x, goal_y))


def test_copies_of_a_world_read_the_same_tables_and_cannot_change_them():
    one, same, other = GridWorld(walls=[(1, 1)]), GridWorld(walls=[[1, 1]]), GridWorld()
    reward = SimpleNamespace(reward=lambda _, action, after: 2.0 * action)
    own = GridWorld(walls=[[1, 1]], reward=reward)
    assert one.tables is same.tables is not other.tables
    assert own.tables is not one.tables and own.tables.rewards[0].tolist() == [0.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        one.tables.rewards[0] = 1.0


def test_reaching_the_goal_terminates_and_the_time_limit_truncates():
    world = GridWorld(max_steps=2)
    world.reset(options=at(3, 1, DOWN))
    assert world.step(FORWARD)[1:4] == (0.0, False, False)
    assert world.step(FORWARD)[1:4] == (1.0, True, False)
    world.reset(options=at(0, 0, UP))
    assert world.step(FORWARD)[2:4] == (False, False)  # a bump counts as a step
    assert world.step(LEFT)[1:4] == (0.0, False, True)


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"walls": [(1, 0), (0, 1)]}, r"no way from {'x': 2, 'y': 0"),
    ({"walls": [(1, 0), (0, 1)], "start": (0, 0, 0), "goal": (3, 3)}, "no way from"),
    ({"walls": [(4, 0)]}, "walls: expected x, y in a 4x4 grid"),
    ({"walls": [(1.5, 1)]}, r"walls: expected x, y .*, whole numbers, got \(1.5, 1\)"),
    ({"walls": [5]}, "walls: expected x, y in a 4x4 grid, whole numbers, got 5"),
    ({"size": 2, "walls": [(0, 0), (0, 1), (1, 0), (1, 1)]}, "walls: expected a free cell"),
    ({"walls": [(0, 0)], "goal": (0, 0)}, "goal: expected x, y of a free cell in a 4x4 grid"),
    ({"start": (0, 0)}, "start: expected"), ({"start": (0, 0, 4)}, "start: expected"),
    ({"start": (1, 1, 0), "goal": (1, 1)}, "start: expected a free cell other than the goal"),
    ({"size": 0}, "size: expected a whole number of at least 1, got 0"),
    ({"max_steps": 0}, "max_steps: expected a whole number of at least 1, got 0"),
    ({"size": 100}, "size: expected at most"), ({"reward": "generous"}, "reward: expected one of"),
])  # fmt: skip
def test_worlds_that_cannot_be_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        GridWorld(**kwargs)


def test_actions_and_states_that_do_not_exist_are_refused():
    world = GridWorld(walls=[(2, 2)])
    world.reset(seed=0)
    for action in (2, -1):
        with pytest.raises(ValueError, match="action"):
            world.step(action)
    for options in (at(2, 2, 0), at(0, 0, 4), at(0, 0, -1), {"state": {"x": 1}}, {"state": 5}):
        with pytest.raises(ValueError, match="state: expected x, y"):
            world.reset(options=options)
    with pytest.raises(ValueError, match="state: expected another cell than the goal's"):
        world.reset(options=at(3, 3, 0))


def test_a_fixed_start_is_where_episodes_begin_and_values_are_known_everywhere():
    env = LanguageEnv(GridWorld(start=(0, 0, UP), goal=(1, 1), size=2))
    start = {"x": 0, "y": 0, "orientation": UP, "goal_x": 1, "goal_y": 1}
    assert env.start_states() == [start]
    assert [episode.state for episode in all_episodes(env, seed=0)] == [start]
    played = sampled_episodes(env, 3, seed=0)
    assert [episode.state for episode in played] == [start] * 3
    assert len(env.view_states()) == 12
    free = LanguageEnv(GridWorld(size=3))
    assert free.start_states() == free.view_states()
    separate = GridWorld(walls=[(1, 0), (0, 1)], start=(3, 0, 0), goal=(3, 3))  # from (0, 0)
    assert separate.reset(seed=0)[0].tolist() == [3, 0, 0, 3, 3]


@pytest.mark.parametrize("kwargs", WORLDS)
def test_the_text_view_equals_the_numeric_one(kwargs):
    template = "{x} {y} {orientation} {goal_x} {goal_y}"
    numeric = GridWorld(**kwargs)
    spoken = LanguageEnv(GridWorld(**kwargs), template=template, max_chains=1000)
    rng = np.random.default_rng(0)
    for seed in range(20):
        observation, _ = numeric.reset(seed=seed)
        text, info = spoken.reset(seed=seed)
        ended = False
        while not ended:
            x, y, orientation, *goal = observation.tolist()
            assert text.split() == list(map(str, [x, y, ORIENTATIONS[orientation], *goal]))
            assert list(info["state"].values()) == observation.tolist()
            chain = rng.integers(numeric.action_space.n, size=rng.integers(1, 10)).tolist()
            text, reward, *flags, info = spoken.step(spoken.grammar.render(chain))
            played = []
            for action in chain:
                observation, *outcome, numeric_info = numeric.step(action)
                played.append((outcome[0], numeric_info["bumped"], observation[:3].tolist()))
                if outcome[1] or outcome[2]:
                    break
            told = zip(info["rewards"], info["bumped"], info["positions"], strict=True)
            assert list(told) == played
            assert reward == sum(r for r, _, _ in played)
            assert flags == outcome[1:]
            ended = any(flags)


def test_an_episode_is_a_function_of_seed_copy_and_episode_number():
    def starts(seed, copy):
        world = GridWorld()
        first = world.reset(seed=seed, options={"copy": copy})[0]
        return np.array([first, *(world.reset()[0] for _ in range(20))])

    assert (starts(3, 0) == starts(3, 0)).all()
    assert (starts(3, 0) != starts(4, 0)).any()
    assert (starts(3, 1) != starts(4, 0)).any()  # not seed + copy
    assert (starts(3, 0) != starts(3, 1)).any()


def test_rendering_shows_agent_goal_and_walls():
    world = GridWorld(walls=[(2, 2)], render_mode="ansi")
    world.reset(options=at(1, 0, DOWN))
    assert world.render() == ".v..\n....\n..#.\n...G"
