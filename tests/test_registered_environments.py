"""What must hold of every environment that LactChain registers; new ones are found here."""

from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_checker import check_env as check_env_sb3

import lactchain.worlds  # noqa: F401  registers
from lactchain import ConfigError, GridWorld, RunConfig, language_env, make_vector_env, train_agent
from lactchain.baselines.member_envs import ResumableLoop, make_numeric_env, spaces_of
from lactchain.baselines.settings import LoopConfig, TrainPPOConfig, WorldConfig
from lactchain.environments.registry import name_modules

IDS = sorted(env_id for env_id in gym.registry if env_id.startswith("lactchain/"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("env_id", IDS)
def test_the_checkers_have_nothing_to_say(env_id):
    env = gym.make(env_id, disable_env_checker=True)
    check_env(env.unwrapped)
    if not isinstance(env.observation_space, spaces.Text):  # of which Stable-Baselines3 knows none
        check_env_sb3(env, skip_render_check=False)


@pytest.mark.parametrize("make", [make_vector_env, ResumableLoop])
@pytest.mark.parametrize("env_id", IDS)
def test_copies_answer_with_observations_of_their_space(env_id, make):
    with closing(make(env_id, 2)) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        observations, _ = envs.reset(seed=0)
        assert all(row for row in observations if isinstance(row, str))
        for _ in range(3):
            assert all(row in envs.single_observation_space for row in observations)
            observations, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
            assert rewards.shape == terminated.shape == truncated.shape == (2,)


def test_text_arrives_whole_and_the_final_observation_is_kept():
    with closing(make_vector_env("lactchain/Language-v0", 2, max_chains=1)) as envs:
        first, _ = envs.reset(seed=3)
        assert all(text.startswith("Grid world of size 4x4") for text in first)
        *_, truncated, infos = envs.step(("hm", "hm"))
        assert truncated.all()
        endings = infos["final_obs"]
        assert all(end.startswith(text) for end, text in zip(endings, first, strict=True))


def test_a_numeric_world_is_one_batch_where_there_is_one():
    envs = make_vector_env("lactchain/GridWorld-v0", 3, size=5)
    assert type(envs).__name__ == "GridWorldVectorEnv"
    assert envs.reset(seed=0)[0].shape == (3, 5)
    assert type(make_vector_env("FrozenLake-v1", 2)) is ResumableLoop


def test_an_environment_may_have_an_argument_named_mode(monkeypatch):
    spec = EnvSpec("Moody-v0", lambda mode=2: GridWorld(size=mode))
    monkeypatch.setitem(gym.registry, "Moody-v0", spec)
    expected = GridWorld(size=7).observation_space
    for envs in (make_vector_env("Moody-v0", 2, mode=7), make_numeric_env("Moody-v0", 2, mode=7)):
        assert envs.single_observation_space == expected != GridWorld(size=2).observation_space
    assert spaces_of(WorldConfig("Moody-v0", {"mode": 7}))[0] == expected


def test_observations_of_the_batch_are_not_reused():
    envs = make_vector_env("lactchain/GridWorld-v0", 64)
    first, _ = envs.reset(seed=0)
    kept = first.copy()
    for _ in range(70):
        envs.step(np.zeros(64, dtype=np.int64))
    assert (first == kept).all()


@pytest.mark.parametrize("make", [
    lambda kwargs: make_numeric_env("CartPole-v1", 1, **kwargs),
    lambda kwargs: make_numeric_env("Acrobot-v1", 2, **kwargs),
    lambda kwargs: language_env("lactchain/GridWorld-v0", kwargs),
])  # fmt: skip
@pytest.mark.parametrize("name", ["token", "id", "num_envs", "self", "api_key"])
def test_arguments_that_a_world_does_not_take_are_named_without_their_values(make, name):
    said = rf"environment\.kwargs: .* does not take {name}: "
    with pytest.raises(ConfigError, match=said) as told:
        make({name: "s3cret"})
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "x"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_time_limit_that_is_no_number_of_steps_is_refused(env_id, steps):
    with pytest.raises(ConfigError, match=r"\.kwargs: .* does not take max_episode_steps"):
        make_numeric_env(env_id, 1, max_episode_steps=steps)


def test_an_id_may_name_the_module_that_registers_it(tmp_path):
    name_modules(["other_worlds"])  # as a command does
    world, loop = WorldConfig("other_worlds:others/Puzzle-v0"), LoopConfig(total_steps=64)
    config = TrainPPOConfig(run=RunConfig(run_dir=str(tmp_path)), environment=world, loop=loop)
    assert train_agent(config)["num_env_steps"] >= 64
    with closing(make_vector_env("other_worlds:others/Puzzle-v0", 2)) as envs:
        assert len(envs.reset(seed=0)[0]) == 2
