"""What a world hands over stays as it was, however the world goes on with its own."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lactchain import LanguageEnv, TextView
from lactchain.baselines.member_envs import MemberEnvs, make_vector_env
from lactchain.environments.exact import TabularModel
from lactchain.environments.faults import plain

LENGTH = 7


class Corridor(gym.Env):
    """Seven cells; the last one is the end. It keeps one board, and writes on that."""

    observation_space = spaces.Box(-9, 9, (1,), np.int64)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.board, self.seen, self.told = [2], np.array([2]), {"cell": [2]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._put(2)
        return self.seen, self.told

    def step(self, action):
        self._put(max(0, self.board[0] + 2 * int(action) - 1))
        return self.seen, 0.0, self.board[0] == LENGTH - 1, False, self.told

    def _put(self, cell):
        self.board[0] = self.seen[0] = self.told["cell"][0] = cell


def own_list(env):
    return {"board": env.unwrapped.board}


def own_cell(env, observation, info):
    return {"cell": env.unwrapped.board[0]}


def corridor(get_state=own_list, **more):
    view = TextView(("left", "right"), "{cell}{feedback}", own_cell, get_state=get_state, **more)
    return LanguageEnv(Corridor(), view, extractor="json_list")


def held_in(cell, array=np.array):
    """A cell in lists, tuples, dicts and arrays, and in one object that is held twice."""
    twice = [cell, cell]
    arrays = (array([cell, cell]), {"0": [array([cell, cell])]})
    return {"list": [[cell, cell]], "tuple": ([cell, cell], [twice, twice]), "arrays": arrays}


def write(held, cell):
    """Another cell in all its places, by the same objects."""
    if isinstance(held, np.ndarray) or (isinstance(held, list) and isinstance(held[0], int)):
        held[:] = [cell, cell]
        return
    for part in held.values() if isinstance(held, dict) else held:
        write(part, cell)


def test_states_stay_as_they_were_however_a_world_holds_them():
    class Nested(Corridor):
        def __init__(self):
            self.held = held_in(2)
            super().__init__()

        def _put(self, cell):
            super()._put(cell)
            write(self.held, cell)

    def take(env, state):
        """Goes on writing on the very objects of the state, which are of its types."""
        assert plain(state) == told[4]
        env.unwrapped.held = state["held"]
        return env.unwrapped.seen, {}

    states = [{"held": held_in(cell)} for cell in range(LENGTH)]
    told = [{"held": held_in(cell, list)} for cell in range(LENGTH)]
    more = {"get_state": lambda env: {"held": env.unwrapped.held}, "set_state": take}
    view = corridor(**more, states=lambda env: states).view
    env = LanguageEnv(Nested(), view, extractor="json_list")
    infos, cells = [env.reset(seed=0)[1]], [2, 1, 0, 0, 1, 2]
    for action in ("left", "left", "left", "right", "right"):
        infos.append(env.step(f'["{action}"]')[4])
    assert [info["state"] for info in infos] == [told[cell] for cell in cells]
    assert [info["bumped"] for info in infos[1:]] == [[False], [False], [True], [False], [False]]
    json.dumps(infos)
    listed = env.view_states()
    for state in (states[4], listed[4]):
        env.reset(options={"state": state})
        env.step('["left"]')
    assert str(states[4]) == str({"held": held_in(4)})
    assert listed == told


def test_positions_of_a_chain_stay_apart():
    env = corridor(position=lambda env: env.unwrapped.board)
    env.reset(seed=0)
    assert env.step('["left", "left", "right"]')[4]["positions"] == [[1], [0], [1]]


def test_what_a_world_that_reads_tells_stays_as_it_was():
    told = {"executed": [], "rewards": [], "bumped": [], "positions": []}

    class Reader(Corridor):
        observation_space = action_space = spaces.Text(99)

        def reset(self, *, seed=None, options=None):
            return "go", told

        def step(self, action):
            told["executed"].append(action)
            return "go", 0.0, False, False, told

    grammar = LanguageEnv(Corridor(), corridor().view).grammar
    view = TextView(("left", "right"), "go{feedback}", lambda *_: {}, reads=grammar)
    env = LanguageEnv(Reader(), view)
    env.reset(seed=0)
    infos = [env.step('["left"]')[4] for _ in range(3)]
    assert [len(info["executed"]) for info in infos] == [1, 2, 3]


class Batch(VectorEnv):
    """Copies of the corridor in one batch, which writes each step over the last."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    num_envs = 2
    single_observation_space = Corridor.observation_space
    single_action_space = Corridor.action_space
    observation_space = batch_space(single_observation_space, 2)
    action_space = batch_space(single_action_space, 2)

    def __init__(self, num_envs=2):
        self.rows, self.rewards = np.zeros((2, 1), dtype=np.int64), np.zeros(2)
        self.ended, self.cut = np.zeros(2, dtype=bool), np.zeros(2, dtype=bool)

    def reset(self, *, seed=None, options=None):
        self.rows[:] = 2
        return self.rows, {}

    def step(self, actions):
        actions *= 2
        self.rows[:, 0] += actions - 1
        self.rewards += 1.0
        self.ended[:] = self.rows[:, 0] == LENGTH - 1
        return self.rows, self.rewards, self.ended, self.cut, {"final_obs": self.rows}

    def get_state(self):
        return {"rows": self.rows}

    def set_state(self, state):
        self.rows = state["rows"]


@pytest.fixture
def numeric():
    gym.register("handed/Corridor-v0", Corridor, disable_env_checker=True)
    gym.register("handed/Batch-v0", Corridor, vector_entry_point=Batch)
    yield
    del gym.registry["handed/Corridor-v0"], gym.registry["handed/Batch-v0"]


@pytest.mark.parametrize("id", ["handed/Corridor-v0", "handed/Batch-v0"])
def test_steps_of_copies_stay_as_they_were(numeric, id):
    envs = MemberEnvs(id, 1, 2)
    right = np.ones((1, 2), dtype=np.int64)
    steps = [envs.step(right) for _ in range(4)]
    assert [int(step.observations[0, 0, 0]) for step in steps] == [2, 3, 4, 5]
    assert [int(step.next_observations[0, 0, 0]) for step in steps] == [3, 4, 5, 6]
    assert [bool(step.terminated[0, 0]) for step in steps] == [False, False, False, True]
    assert (right == 1).all()
    if id == "handed/Batch-v0":
        assert [float(step.rewards[0, 0]) for step in steps] == [1.0, 2.0, 3.0, 4.0]


def test_a_state_of_copies_stays_as_it_was_given_and_taken(numeric):
    envs, right = MemberEnvs("handed/Batch-v0", 1, 2), np.ones((1, 2), dtype=np.int64)
    state = envs.state_dict()
    for _ in range(2):
        envs.step(right)
        envs.load_state_dict(state)
        assert int(state["envs"]["rows"][0, 0]) == int(state["observations"][0, 0, 0]) == 2
        assert int(envs.step(right).next_observations[0, 0, 0]) == 3


def test_what_an_episode_ended_on_is_not_where_the_next_begins(numeric):
    envs = make_vector_env("handed/Corridor-v0", 2)
    envs.reset(seed=0)
    for _ in range(4):
        after, _, _, _, infos = envs.step(np.ones(2, dtype=np.int64))
    envs.close()
    assert [int(last[0]) for last in infos["final_obs"]] == [6, 6]
    assert after.tolist() == [[2], [2]]


def test_a_model_may_name_its_states_by_arrays():
    ahead = np.array([[[0], [1]], [[0], [2]], [[2], [2]]])
    states = tuple({"cell": np.array([cell, 0])} for cell in range(3))
    over = np.arange(3) == 2
    model = TabularModel(ahead, np.ones((3, 2, 1)), np.zeros((3, 2, 1)), over, over, states)
    assert model.non_terminal_states == [{"cell": [0, 0]}, {"cell": [1, 0]}]
    assert [model.row(state) for state in model.non_terminal_states] == [0, 1]


def test_an_array_of_objects_is_no_longer_the_worlds():
    inner = [1]
    held = np.array([inner, None], dtype=object)
    state = plain({"held": held, "count": np.int64(3)})
    inner[0] = 2
    assert state == {"held": [[1], None], "count": 3} and type(state["count"]) is int
