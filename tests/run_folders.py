"""Run folders as the scripts leave them, made in milliseconds without any model."""

import json
import math
from itertools import count
from pathlib import Path

from trajectories import trajectory
from wordle_tree import InformedWords

from lactchain import EnvironmentConfig, LanguageEnv, make_language_env, write_trajectories
from lactchain.environments.scripted import OptimalChains, RandomChains
from lactchain.storage.manifests import write_run_file, write_with_manifest
from lactchain.types import Action, Trajectory

GRID = EnvironmentConfig(max_chains=6, template="{x} {y} {orientation} {goal_x} {goal_y}{feedback}")
LAKE = EnvironmentConfig("FrozenLake-v1", {"is_slippery": False}, max_chains=4)
MAZE = EnvironmentConfig("lactchain/Maze-v0", extractor="utterance")
WORDLE = EnvironmentConfig("lactchain/Wordle-v0", extractor="utterance")
GAMMA = 0.95
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"' &lt; $x$ [b]"
HOSTILE += "\x1b[31m\x00\ud800"


def play(env: LanguageEnv, completions, seed: int, state=None, policy="script") -> Trajectory:
    """An episode in which `completions(observation)` is said until it ends."""
    observation, info = env.reset(seed=seed, options={"state": state} if state else None)
    observations, actions, rewards, infos = [observation], [], [], [info]
    terminated = truncated = False
    while not (terminated or truncated):
        actions.append(Action(completions(observation), (1, 2), (-0.5, -0.25)))
        observation, reward, terminated, truncated, info = env.step(actions[-1].text)
        observations.append(observation)
        rewards.append(reward)
        infos.append(info)
    told = {"env_id": env.env.spec.id, "seed": seed, "truncated": truncated, "policy": policy}
    return trajectory(observations, actions, rewards, infos, terminated=terminated, **told)


def hostile_trajectory() -> Trajectory:
    """One completion that tries everything."""
    state = {"x": 0, "y": 0, "orientation": 0, "goal_x": 1, "goal_y": 1}
    after = {"executed": [], "rewards": [], "bumped": [], "positions": [], "state": state}
    infos = {"state": state}, after | {"invalid_action": True, "invalid_reason": HOSTILE}
    told = {"env_id": HOSTILE, "policy": HOSTILE, "terminated": False}
    return trajectory([HOSTILE] * 2, [HOSTILE], [0.0], infos, **told)


def write_run(
    directory: Path, config: dict, num_records: int, summary: dict | None = None, start=0
):
    """The files that every run has; curves that fall and rise."""
    directory.mkdir(parents=True)
    write_run_file(directory, {"device": "cpu", "git_commit": "abc", "config": config})
    records = (
        {
            "step": 10 * n,
            "time": 1e9 + start + 30 * n,
            "train/loss": math.exp(-n / 10) if n != 5 else None,
            "rewards/margins": n / 30,
            "logps/chosen": -1 - n / 50,
            "rollout/invalid_rate": 0.05 / (n + 1),
            "learning_rate": 1e-4 * (1 - n / num_records),
        }
        for n in range(num_records)
    )
    (directory / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if summary is not None:
        write_with_manifest(directory / "summary.json", json.dumps(summary).encode(), {})


def write_maze_run(directory: Path) -> Path:
    """A run in LMRL-Gym's maze: a way to the goal, and one that wanders."""
    write_run(directory, {"environment": {"id": MAZE.id, "extractor": MAZE.extractor}}, 3)
    env = make_language_env(MAZE)
    optimal, wandering, seeds = OptimalChains(env), RandomChains(env.grammar), count()
    start = env.view.model(env.env).non_terminal_states[0]
    said = {"optimal": lambda text: optimal.complete(text, 0)}
    said["random"] = lambda text: wandering.complete(text, next(seeds))
    episodes = [play(env, say, n, start, name) for n, (name, say) in enumerate(said.items())]
    write_trajectories(directory / "trajectories" / "000000.parquet", episodes)
    return directory


def write_wordle_run(directory: Path) -> Path:
    """A run with games of Wordle: one played well, one full of nonsense."""
    write_run(directory, {"environment": {"id": WORDLE.id, "extractor": WORDLE.extractor}}, 3)
    env = make_language_env(WORDLE)
    policy = InformedWords(env)
    completions = iter(["a b o u t\n", HOSTILE, "", *["z\n"] * 9])
    episodes = [
        play(env, lambda text: policy.act([text], [0])[0].text, 3, None, "informed"),
        play(env, lambda _: next(completions), 0, None, "nonsense"),
    ]
    write_trajectories(directory / "trajectories" / "000000.parquet", episodes)
    return directory


def write_text_run(directory: Path) -> Path:
    """A run in a world that is not drawn: FrozenLake, without values."""
    write_run(directory, {"environment": {"id": LAKE.id, "kwargs": LAKE.kwargs}}, 3)
    env = make_language_env(LAKE)
    completions = iter(['["down", "right"]', "no idea"] * 20)
    episodes = [play(env, lambda _: next(completions), seed) for seed in range(3)]
    write_trajectories(directory / "trajectories" / "000000.parquet", episodes)
    return directory
