"""What baselines.py measures: classic agents and Stable-Baselines3's, trained and timed."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from measuring import ROOT, in_turns

from lactchain.baselines.dqn import CQL
from lactchain.baselines.evaluation import evaluate_members
from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.settings import (
    DDPGConfig,
    DQNConfig,
    PPOConfig,
    TrainCQLConfig,
    TrainDDPGConfig,
    TrainDQNConfig,
    TrainPPOConfig,
)
from lactchain.baselines.training import AGENTS, random_transitions
from lactchain.config.parsing import parse

CLASSES = {
    "train_ppo": TrainPPOConfig,
    "train_dqn": TrainDQNConfig,
    "train_ddpg": TrainDDPGConfig,
    "train_cql": TrainCQLConfig,
}
# rl-baselines3-zoo's settings (hyperparams/*.yml) in our words, and in Stable-Baselines3's.
ZOO = {
    "PPO CartPole-v1": (
        PPOConfig(
            num_envs=8, num_steps=32, batch_size=256, num_epochs=20, gae_lambda=0.8, gamma=0.98,
            learning_rate=1e-3, clip_range=0.2, anneal=True,
        ),
        {
            "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98,
            "ent_coef": 0.0, "learning_rate": lambda left: 1e-3 * left,
            "clip_range": lambda left: 0.2 * left,
        },
        100_000,
    ),
    "DQN CartPole-v1": (
        DQNConfig(
            num_envs=1, hidden=(256, 256), learning_rate=2.3e-3, batch_size=64,
            double=False,  # as Stable-Baselines3's
            buffer_size=100_000, learning_starts=1000, gamma=0.99, target_every_updates=128,
            train_every_env_steps=256, num_updates=128, exploration_fraction=0.16,
            final_exploration=0.04,
        ),
        {
            "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000,
            "learning_starts": 1000, "gamma": 0.99, "target_update_interval": 10,
            "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256]},
        },
        50_000,
    ),
    "DDPG Pendulum-v1": (
        DDPGConfig(
            num_envs=1, hidden=(400, 300), learning_rate=1e-3, actor_learning_rate=1e-3,
            batch_size=256, gamma=0.98, buffer_size=200_000, learning_starts=10_000,
            exploration_noise=0.1,
        ),
        {
            "learning_rate": 1e-3, "gamma": 0.98, "buffer_size": 200_000,
            "learning_starts": 10_000, "gradient_steps": 1, "train_freq": 1,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
        20_000,
    ),
}  # fmt: skip
# The zoo's settings that have no like here: generalised state-dependent exploration.
ZOO_THEIRS = {
    "PPO Pendulum-v1": (
        4,
        {
            "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
            "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
        },
        100_000,
    ),
}  # fmt: skip
# Mean returns that rl-baselines3-zoo publishes, of one run each (its benchmark.md at 0088472).
PUBLISHED = {
    "PPO Acrobot-v1": -73.5,
    "DQN Acrobot-v1": -76.6,
    "PPO MountainCar-v0": -110.4,
    "DQN MountainCar-v0": -100.8,
}
# Its settings for these (rl-zoo3 2.9.2); PPO's observations and rewards are normalised.
PPO_PUBLISHED = {"gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0}
DQN_PUBLISHED = {"batch_size": 128, "policy_kwargs": {"net_arch": [256, 256]}}
ZOO_PUBLISHED = {
    "PPO Acrobot-v1": (16, PPO_PUBLISHED | {"n_steps": 256, "gae_lambda": 0.94}, 1_000_000),
    "PPO MountainCar-v0": (16, PPO_PUBLISHED | {"n_steps": 16, "gae_lambda": 0.98}, 1_000_000),
    "DQN Acrobot-v1": (
        1,
        DQN_PUBLISHED
        | {
            "learning_rate": 6.3e-4, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
            "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1,
            "exploration_fraction": 0.12, "exploration_final_eps": 0.1,
        },
        100_000,
    ),
    "DQN MountainCar-v0": (
        1,
        DQN_PUBLISHED
        | {
            "learning_rate": 4e-3, "buffer_size": 10_000, "learning_starts": 1000, "gamma": 0.98,
            "target_update_interval": 600, "train_freq": 16, "gradient_steps": 8,
            "exploration_fraction": 0.2, "exploration_final_eps": 0.07,
        },
        120_000,
    ),
}  # fmt: skip
ZOO_THEIRS |= {name: (ours.num_envs, theirs, steps) for name, (ours, theirs, steps) in ZOO.items()}
SB3_SETTINGS = ZOO_THEIRS | ZOO_PUBLISHED
# Steps of one timing after a warm-up that fills buffers.
SPEED_STEPS = {"PPO CartPole-v1": 10_240, "DQN CartPole-v1": 4_096, "DDPG Pendulum-v1": 600}
SEEDS_OF_EPISODES = 3_000_000


# --- agents --------------------------------------------------------------------------------------


def shipped(name: str) -> Any:
    """A configuration in configs/."""
    return parse(CLASSES[name.split("/")[0]], ["--config", str(ROOT / "configs" / f"{name}.yaml")])


def make_agent(config: Any, env_id: str, num_members: int, seed: int, **kwargs: Any) -> tuple:
    """An agent and the copies that it plays."""
    envs = MemberEnvs(env_id, num_members, config.num_envs, seed, **kwargs)
    spaces = envs.observation_space, envs.action_space
    return AGENTS[type(config)](config, *spaces, seed, num_members), envs


def make_sb3(name: str, seed: int, env_id: str | None = None) -> Any:
    """Stable-Baselines3's model at the zoo's settings; on `env_id` where it is given."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize

    algorithm, zoo_id = name.split()
    num_envs, settings, _ = SB3_SETTINGS[name]
    settings = dict(settings)
    if algorithm == "DDPG":
        settings["action_noise"] = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
    env: Any = make_vec_env(env_id or zoo_id, num_envs, seed=seed)
    if algorithm == "PPO" and name in ZOO_PUBLISHED:
        env = VecNormalize(env, gamma=settings["gamma"])
    return getattr(sb3, algorithm)("MlpPolicy", env, seed=seed, device="cpu", **settings)


def play(act: Callable, env_id: str, num_members: int, num_episodes: int, **kwargs: Any) -> Any:
    return evaluate_members(act, env_id, num_members, num_episodes, SEEDS_OF_EPISODES, **kwargs)


def greedy(agent: Any) -> Callable:
    return lambda observations: agent.act(observations, greedy=True)


# --- returns -------------------------------------------------------------------------------------


def train_ours(name: str, num_seeds: int, seed: int = 0) -> dict[str, Any]:
    """Trains the shipped configuration to its end; returns of the final weights."""
    config = shipped(name)
    world, total = config.environment, config.loop.total_steps
    agent, envs = make_agent(config.agent, world.id, num_seeds, seed, **world.kwargs)
    began = time.process_time()
    while envs.num_env_steps < total * num_seeds:
        agent.advance(envs, envs.num_env_steps / (total * num_seeds))
        envs.pop_episodes()
    seconds = time.process_time() - began
    result = play(greedy(agent), world.id, num_seeds, 100, **world.kwargs)
    return {"steps": total, "returns": result.returns.mean(1).tolist(), "seconds": seconds}


def train_sb3(name: str, seed: int) -> dict[str, float]:
    from lactchain_extras.foreign_agents import sb3_act

    model = make_sb3(name, seed)
    began = time.process_time()
    model.learn(SB3_SETTINGS[name][2])
    seconds = time.process_time() - began
    result = play(sb3_act(model), name.split()[1], 1, 100)
    return {"return": float(result.returns.mean()), "seconds": seconds}


def train_cql(seed: int) -> float:
    """Data, weights and learning of one seed."""
    config = shipped("train_cql/cartpole")
    data = random_transitions(config.environment, config.num_random_steps, seed)
    env = gym.make("CartPole-v1")
    agent = CQL(config.agent, env.observation_space, env.action_space, seed)
    while agent.num_updates < config.loop.total_steps:
        agent.advance(data, agent.num_updates / config.loop.total_steps)
    return float(play(greedy(agent), "CartPole-v1", 1, 20).returns.mean())


# --- speed ---------------------------------------------------------------------------------------


def one_by_one(env_id: str) -> str:
    """An id of the same environment that has no numpy batch: copies are played in a loop."""
    spec = gym.spec(env_id)
    looped = f"OneByOne{env_id}"
    if looped not in gym.registry:
        gym.register(looped, spec.entry_point, max_episode_steps=spec.max_episode_steps)
    return looped


def time_in_turns(name: str, repeats: int, same: bool = False) -> dict[str, list[float]]:
    """Steps per CPU-second of both sides, in turns, past the random start.

    Ours play numpy batches as users have them; with `same`, Gymnasium's copies as the other side.
    """
    config, steps, env_id = ZOO[name][0], SPEED_STEPS[name], name.split()[1]
    env_id = one_by_one(env_id) if same else env_id
    agent, envs = make_agent(config, env_id, 1, 0)
    start = 0 if isinstance(config, PPOConfig) else config.learning_starts
    while envs.num_env_steps <= start:
        agent.advance(envs, 0.5)
    model = make_sb3(name, 0, env_id)
    model.learn(start + 1)
    sides = {"ours": partial(advance, agent, envs, steps), "sb3": partial(learn_on, model, steps)}
    return in_turns(sides, repeats, rate)


def rate(work: Callable[[], int]) -> float:
    began = time.process_time()
    steps = work()
    return steps / (time.process_time() - began)


def advance(agent: Any, envs: Any, steps: int) -> int:
    start = envs.num_env_steps
    while envs.num_env_steps - start < steps:
        agent.advance(envs, 0.5)
        envs.pop_episodes()
    return envs.num_env_steps - start


def learn_on(model: Any, steps: int) -> int:
    """As its users run it: denormal numbers, which ours flush, are left as torch leaves them."""
    torch.set_flush_denormal(False)
    start = model.num_timesteps
    model.learn(steps, reset_num_timesteps=False)
    return model.num_timesteps - start
