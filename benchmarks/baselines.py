"""Classic agents: returns, and speed against Stable-Baselines3 in the same process, in turns.

    python benchmarks/baselines.py --write
    python benchmarks/baselines.py --parts speed time grid

Parts:
- returns: final weights (no selection by playing) after the budget of configs/, 100 greedy episodes
  each on Gymnasium's own environments, from the same seeds for everybody. The seeds of a row are
  the members of one population: weights, environments and random numbers of their own.
- sb3: the same for Stable-Baselines3 at rl-baselines3-zoo's settings.
- speed: environment steps per CPU-second at the zoo's settings, same minibatches per step, ours and
  Stable-Baselines3's in turns; and a population of eight at our own settings.
- time: CPU-seconds of training until the mean of 50 greedy episodes on CartPole reaches 475.
- cql: CQL on 20,000 steps of random CartPole play, final weights, 20 episodes.
- grid: steps per second of 4,096 grid worlds through `VectorEnv.step`.
- gridworld: PPO and DQN on the language policies' world, beside the run of the recipe in --language
  if given, which is made by configs/run_pipeline/tiny.yaml where it is not there.

One thread, CPU time of the process (`time.process_time`). Each measurement is kept in --folder and
not made again when it is there; --write appends the tables to benchmarks/RESULTS.md.
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain.baselines.settings import (
    DDPGConfig,
    DQNConfig,
    PPOConfig,
    TrainCQLConfig,
    TrainDDPGConfig,
    TrainDQNConfig,
    TrainPPOConfig,
)
from lactchain.config import parse

ROOT = Path(__file__).parent.parent
CLASSES = {
    "train_ppo": TrainPPOConfig,
    "train_dqn": TrainDQNConfig,
    "train_ddpg": TrainDDPGConfig,
    "train_cql": TrainCQLConfig,
}
# name: (our configuration, target of the mean return)
RETURNS = {
    "PPO CartPole-v1": ("train_ppo/cartpole", 500),
    "DQN CartPole-v1": ("train_dqn/cartpole", 500),
    "PPO Pendulum-v1": ("train_ppo/pendulum", -175),
    "DDPG Pendulum-v1": ("train_ddpg/pendulum", -155),
    "PPO LunarLander-v3": ("train_ppo/lunar_lander", 240),
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
ZOO_THEIRS |= {name: (ours.num_envs, theirs, steps) for name, (ours, theirs, steps) in ZOO.items()}
SPEED_TARGETS = {"PPO CartPole-v1": 1.8, "DQN CartPole-v1": 1.5, "DDPG Pendulum-v1": 1.25}
# Steps of one timing after a warm-up that fills buffers.
SPEED_STEPS = {"PPO CartPole-v1": 10_240, "DQN CartPole-v1": 4_096, "DDPG Pendulum-v1": 600}
SEEDS_OF_EPISODES = 3_000_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--num_seeds", type=int, default=5)
    parser.add_argument("--names", nargs="+", choices=RETURNS, default=[*RETURNS])
    parser.add_argument("--sb3_names", nargs="+", choices=ZOO_THEIRS, default=[*ZOO_THEIRS])
    parser.add_argument("--sb3_seeds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="timings of each side, in turns")
    parser.add_argument("--language", help="run folder of a language policy; made if not there")
    parser.add_argument("--folder", default="runs/benchmarks/baselines")
    parser.add_argument("--write", action="store_true", help="append to benchmarks/RESULTS.md")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    folder = ROOT / options.folder
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line for part in options.parts for line in [*PARTS[part](options, folder), ""]]
    sys.stdout.write("\n".join([*lines, ""]))
    if options.write:
        append(lines)


def kept(folder: Path, name: str, measure: Callable[[], Any]) -> Any:
    """A measurement, from its file when it has been made."""
    path = folder / f"{name.replace(' ', '_')}.json"
    if not path.exists():
        sys.stderr.write(f"{name} ...\n")
        path.write_text(json.dumps(measure()))
    return json.loads(path.read_text())


# --- agents --------------------------------------------------------------------------------------


def shipped(name: str) -> Any:
    """A configuration in configs/."""
    return parse(CLASSES[name.split("/")[0]], ["--config", str(ROOT / "configs" / f"{name}.yaml")])


def make_agent(config: Any, env_id: str, num_members: int, seed: int, **kwargs: Any) -> tuple:
    """An agent and the copies that it plays."""
    from lactchain.baselines.member_envs import MemberEnvs
    from lactchain.baselines.training import AGENTS

    envs = MemberEnvs(env_id, num_members, config.num_envs, seed, **kwargs)
    spaces = envs.observation_space, envs.action_space
    return AGENTS[type(config)]([config] * num_members, *spaces, seed), envs


def make_sb3(name: str, seed: int) -> Any:
    """Stable-Baselines3's model at the zoo's settings."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    algorithm, env_id = name.split()
    num_envs, settings, _ = ZOO_THEIRS[name]
    settings = dict(settings)
    if algorithm == "DDPG":
        settings["action_noise"] = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
    env = make_vec_env(env_id, num_envs, seed=seed)
    return getattr(sb3, algorithm)("MlpPolicy", env, seed=seed, device="cpu", **settings)


def play(act: Callable, env_id: str, num_members: int, num_episodes: int, **kwargs: Any) -> Any:
    from lactchain.baselines.evaluation import evaluate_members

    return evaluate_members(act, env_id, num_members, num_episodes, SEEDS_OF_EPISODES, **kwargs)


def greedy(agent: Any) -> Callable:
    return lambda observations: agent.act(observations, greedy=True)


# --- returns -------------------------------------------------------------------------------------


def returns_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| agent, environment | steps | target | IQM | 95% interval | every seed | CPU-seconds |"
    yield "|---|---|---|---|---|---|---|"
    for name in options.names:
        config, target = RETURNS[name]
        key = f"returns_{name}_{options.num_seeds}"
        found = kept(folder, key, lambda c=config: train_ours(c, options.num_seeds))
        yield returns_row(name, found, target)


def sb3_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| Stable-Baselines3, zoo's settings | steps | IQM | 95% interval | every seed | CPU-s |"
    yield "|---|---|---|---|---|---|"
    for name in options.sb3_names:
        seeds = [
            kept(folder, f"sb3_{name}_{seed}", lambda n=name, s=seed: train_sb3(n, s))
            for seed in range(options.sb3_seeds)
        ]
        found = {
            "steps": ZOO_THEIRS[name][2],
            "returns": [seed["return"] for seed in seeds],
            "seconds": sum(seed["seconds"] for seed in seeds),
        }
        yield returns_row(name, found, None)


def returns_row(name: str, found: dict[str, Any], target: float | None) -> str:
    from seed_statistics import bootstrap_interval, interquartile_mean

    low, high = bootstrap_interval(found["returns"])
    cells = [name, f"{found['steps']:,}", *([] if target is None else [str(target)])]
    cells += [f"{interquartile_mean(found['returns']):.1f}", f"{low:.1f} to {high:.1f}"]
    cells += [", ".join(f"{value:.1f}" for value in found["returns"]), f"{found['seconds']:.0f}"]
    return f"| {' | '.join(cells)} |"


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
    return {
        "steps": total,
        "returns": result.returns.mean(1).tolist(),
        "lengths": result.lengths.mean(1).tolist(),
        "seconds": seconds,
    }


def train_sb3(name: str, seed: int) -> dict[str, float]:
    from lactchain.baselines.evaluation import sb3_act

    model = make_sb3(name, seed)
    began = time.process_time()
    model.learn(ZOO_THEIRS[name][2])
    seconds = time.process_time() - began
    result = play(sb3_act(model), name.split()[1], 1, 100)
    return {"return": float(result.returns.mean()), "seconds": seconds}


# --- speed ---------------------------------------------------------------------------------------


def speed_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| zoo's settings | ours, steps per CPU-second | Stable-Baselines3 | ratio | target |"
    yield "|---|---|---|---|---|"
    for name in ZOO:
        key = f"speed_{name}_{options.repeats}"
        found = kept(folder, key, lambda n=name: time_in_turns(n, options.repeats))
        yield speed_row(name, found, SPEED_TARGETS[name])
    key = f"speed_population_{options.repeats}"
    found = kept(folder, key, lambda: time_population(options.repeats))
    yield speed_row("PPO, population of 8 at our settings, against one of SB3", found, 10)


def speed_row(name: str, found: dict[str, list[float]], target: float) -> str:
    ours, theirs = np.median(found["ours"]), np.median(found["sb3"])
    return f"| {name} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} | {target} |"


def time_in_turns(name: str, repeats: int) -> dict[str, list[float]]:
    """Steps per CPU-second of both sides, in turns, past the random start."""
    config, steps = ZOO[name][0], SPEED_STEPS[name]
    agent, envs = make_agent(config, name.split()[1], 1, 0)
    start = 0 if isinstance(config, PPOConfig) else config.learning_starts
    while envs.num_env_steps <= start:
        agent.advance(envs, 0.5)
    model = make_sb3(name, 0)
    model.learn(start + 1)
    found: dict[str, list[float]] = {"ours": [], "sb3": []}
    for _ in range(repeats):
        found["ours"].append(rate(lambda: advance(agent, envs, steps)))
        found["sb3"].append(rate(lambda: learn_on(model, steps)))
    return found


def time_population(repeats: int) -> dict[str, list[float]]:
    agent, envs = make_agent(shipped("train_ppo/cartpole").agent, "CartPole-v1", 8, 0)
    model = make_sb3("PPO CartPole-v1", 0)
    advance(agent, envs, 1), model.learn(1)
    found: dict[str, list[float]] = {"ours": [], "sb3": []}
    for _ in range(repeats):
        found["ours"].append(rate(lambda: advance(agent, envs, 80_000)))
        found["sb3"].append(rate(lambda: learn_on(model, 10_240)))
    return found


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
    start = model.num_timesteps
    model.learn(steps, reset_num_timesteps=False)
    return model.num_timesteps - start


# --- time to 475 ---------------------------------------------------------------------------------


def time_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| CPU-seconds until 50 greedy episodes average 475 | median | every seed | steps |"
    yield "|---|---|---|---|"
    medians = {}
    for side, measure in (("ours", time_ours), ("Stable-Baselines3", time_sb3)):
        runs = [
            kept(folder, f"time_{side}_{seed}", lambda s=seed, m=measure: m(s))
            for seed in range(options.num_seeds)
        ]
        medians[side] = np.median([run["seconds"] or np.inf for run in runs])
        seconds = ", ".join("never" if not r["seconds"] else f"{r['seconds']:.2f}" for r in runs)
        steps = ", ".join(f"{run['steps']:,}" for run in runs)
        yield f"| PPO, {side} | {medians[side]:.2f} | {seconds} | {steps} |"
    ratio = medians["ours"] / medians["Stable-Baselines3"]
    yield f"| ratio (target at most 0.25) | {ratio:.2f} | | |"


def time_ours(seed: int) -> dict[str, Any]:
    config = shipped("train_ppo/cartpole")
    agent, envs = make_agent(config.agent, "CartPole-v1", 1, 1000 * seed)

    def train_on(steps: int) -> int:
        while envs.num_env_steps < steps:
            agent.advance(envs, envs.num_env_steps / config.loop.total_steps)
        return envs.num_env_steps

    return until_475(train_on, greedy(agent), config.loop.total_steps)


def time_sb3(seed: int) -> dict[str, Any]:
    from lactchain.baselines.evaluation import sb3_act

    model = make_sb3("PPO CartPole-v1", seed)
    # The schedules must run over the whole budget, though `learn` is called piece by piece.
    total, (_, settings, _) = 100_000, ZOO["PPO CartPole-v1"]
    model.lr_schedule = lambda _: settings["learning_rate"](1 - model.num_timesteps / total)
    model.clip_range = lambda _: settings["clip_range"](1 - model.num_timesteps / total)

    def train_on(steps: int) -> int:
        model.learn(steps - model.num_timesteps, reset_num_timesteps=False)
        return model.num_timesteps

    return until_475(train_on, sb3_act(model), total)


def until_475(train_on: Callable[[int], int], act: Callable, total: int) -> dict[str, Any]:
    """Asks after every 4,096 steps; asking is not timed."""
    seconds, steps = 0.0, 0
    while steps < total:
        began = time.process_time()
        steps = train_on(min(steps + 4_096, total - 1) if steps < total - 1 else total)
        seconds += time.process_time() - began
        if play(act, "CartPole-v1", 1, 50).returns.mean() >= 475:
            return {"seconds": seconds, "steps": steps}
    return {"seconds": None, "steps": steps}


# --- CQL, grid -----------------------------------------------------------------------------------


def cql_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    seeds = [
        kept(folder, f"cql_{seed}", lambda s=seed: train_cql(s))
        for seed in range(options.num_seeds)
    ]
    yield "| CQL, 20,000 random steps of CartPole | target | mean | every seed |"
    yield "|---|---|---|---|"
    every = ", ".join(f"{value:.1f}" for value in seeds)
    yield f"| final weights, 20 episodes each | 400 | {np.mean(seeds):.1f} | {every} |"


def train_cql(seed: int) -> float:
    """Data, weights and learning of one seed."""
    from lactchain.baselines.cql import CQL
    from lactchain.baselines.training import random_transitions

    config = shipped("train_cql/cartpole")
    data = random_transitions(config.environment, config.num_random_steps, seed)
    env = gym.make("CartPole-v1")
    agent = CQL([config.agent], env.observation_space, env.action_space, seed)
    while agent.num_updates < config.loop.total_steps:
        agent.advance(data, agent.num_updates / config.loop.total_steps)
    return float(play(greedy(agent), "CartPole-v1", 1, 20).returns.mean())


def grid_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    rates = kept(folder, f"grid_{options.repeats}", lambda: grid_rates(options.repeats))
    yield "| grid world, 4,096 copies, million steps per second | median | every | target |"
    yield "|---|---|---|---|"
    every = ", ".join(f"{value / 1e6:.1f}" for value in rates)
    median = f"{np.median(rates) / 1e6:.1f}"
    yield f"| `VectorEnv.step`, autoreset and final observations | {median} | {every} | 30 |"


def grid_rates(repeats: int) -> list[float]:
    from lactchain.baselines.vector import make_vector_env

    envs = make_vector_env("lactchain/GridWorld-v0", 4096)
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(2, size=(64, 4096))

    def play_some() -> int:
        for n in range(512):
            envs.step(actions[n % 64])
        return 512 * 4096

    play_some()
    return [rate(play_some) for _ in range(repeats)]


def gridworld_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| GridWorld 4x4 | success | environment steps | CPU-seconds |"
    yield "|---|---|---|---|"
    for name in ("train_ppo/gridworld", "train_dqn/gridworld"):
        key = f"gridworld_{name.replace('/', '_')}_{options.num_seeds}"
        found = kept(folder, key, lambda n=name: train_ours(n, options.num_seeds))
        every = ", ".join(f"{value:.3f}" for value in found["returns"])
        yield (
            f"| {name[6:9].upper()}, {options.num_seeds} small networks | "
            f"{np.mean(found['returns']):.3f} ({every}) | {found['steps']:,} each "
            f"| {found['seconds'] / options.num_seeds:.1f} each |"
        )
    if options.language:
        run_dir = Path(options.language)
        row = language_row(run_dir)
        yield (
            f"| language policy, {row['num_cloned_chains']:,} cloned chains and "
            f"{row['num_rounds']} rounds | {row['success_rate_after']:.3f} "
            f"| {row['num_env_steps']:,} | {row['time/cpu_seconds']:,.0f} |"
        )


def language_row(run_dir: Path) -> dict[str, Any]:
    """What the recipe reached and cost, in one process; it is run if it was not."""
    config = ROOT / "configs" / "run_pipeline" / "gridworld_tiny.yaml"
    command = [sys.executable, str(ROOT / "scripts" / "run_pipeline.py"), "--config", str(config)]
    subprocess.run([*command, "--run.run_dir", str(run_dir)], check=True, cwd=ROOT)
    return json.loads((run_dir / "summary.json").read_text())


PARTS: dict[str, Callable[[argparse.Namespace, Path], Iterator[str]]] = {
    "returns": returns_part,
    "sb3": sb3_part,
    "speed": speed_part,
    "time": time_part,
    "cql": cql_part,
    "grid": grid_part,
    "gridworld": gridworld_part,
}


def append(lines: list[str]) -> None:
    """Adds the tables to RESULTS.md, with what it takes to make them again."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    heading = f"## Classic agents, {datetime.date.today()}"
    command = f"python {' '.join(sys.argv)}".replace(str(ROOT) + "/", "")
    about = f"Commit {commit.strip()}, `{command}`, one thread of two cores, other work running."
    with open(ROOT / "benchmarks" / "RESULTS.md", "a", encoding="utf-8") as file:
        file.write("\n".join(["", heading, "", about, "", *lines]))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="stable_baselines3")
    main()
