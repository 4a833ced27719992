"""Classic agents: returns, and speed against Stable-Baselines3 in the same process, in turns.

    python benchmarks/baselines.py --write
    python benchmarks/baselines.py --parts speed time grid

Parts:
- returns: final weights (no selection by playing) after the budget of configs/, 100 greedy episodes
  each on Gymnasium's own environments, from the same seeds for everybody. The seeds of a row are
  the members of one population: weights, environments and random numbers of their own.
- sb3: the same for Stable-Baselines3 at rl-baselines3-zoo's settings.
- zoo: Acrobot and MountainCar, ten seeds beside the returns that rl-baselines3-zoo publishes of one
  run each, and beside --zoo_seeds runs of Stable-Baselines3 at the zoo's settings.
- speed: environment steps per CPU-second at the zoo's settings, same minibatches per step, ours and
  Stable-Baselines3's in turns: ours on CartPole and Pendulum as numpy batches, and on Gymnasium's
  own copies, as the other side plays them.
- population: the same of PPO for a population of eight at our own settings, on CartPole.
- time: CPU-seconds of training until the mean of 50 greedy episodes on CartPole reaches 475.
- cql: CQL on 20,000 steps of random CartPole play, final weights, 20 episodes.
- grid: steps per second of 4,096 grid worlds through `VectorEnv.step`.
- gridworld: PPO and DQN on the language policies' world, beside the run of the recipe in --language
  if given, which is made by configs/run_pipeline/tiny.yaml where it is not there.

One thread, CPU time of the process (`time.process_time`). Each measurement is kept in --folder and
not made again when it is there; --write appends the tables to benchmarks/RESULTS_ARCHIVE.md.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from baseline_measurements import (
    PUBLISHED,
    ROOT,
    ZOO,
    ZOO_THEIRS,
    grid_rates,
    language_row,
    time_in_turns,
    time_ours,
    time_population,
    time_sb3,
    train_cql,
    train_ours,
    train_sb3,
)

# name: (our configuration, target of the mean return)
RETURNS = {
    "PPO CartPole-v1": ("train_ppo/cartpole", 500),
    "DQN CartPole-v1": ("train_dqn/cartpole", 500),
    "PPO Pendulum-v1": ("train_ppo/pendulum", -175),
    "DDPG Pendulum-v1": ("train_ddpg/pendulum", -155),
    "PPO LunarLander-v3": ("train_ppo/lunar_lander", 240),
}
# Beside rl-baselines3-zoo's published returns.
PUBLISHED_RETURNS = {
    "PPO Acrobot-v1": "train_ppo/acrobot",
    "DQN Acrobot-v1": "train_dqn/acrobot",
    "PPO MountainCar-v0": "train_ppo/mountain_car",
    "DQN MountainCar-v0": "train_dqn/mountain_car",
}
ZOO_SEEDS = 10
COLUMNS_OF_THEIRS = (("return", 1), ("seconds", 0))
# The ratio with our numpy batches of environments, and with the same environments on both sides.
SPEED_TARGETS = {
    "PPO CartPole-v1": (1.8, 1.5),
    "DQN CartPole-v1": (1.5, 1.3),
    "DDPG Pendulum-v1": (1.25, 1.2),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--num_seeds", type=int, default=5)
    parser.add_argument("--names", nargs="+", choices=RETURNS, default=[*RETURNS])
    parser.add_argument("--sb3_names", nargs="+", choices=ZOO_THEIRS, default=[*ZOO_THEIRS])
    parser.add_argument("--sb3_seeds", type=int, default=5)
    parser.add_argument("--zoo_names", nargs="+", choices=PUBLISHED, default=[*PUBLISHED])
    parser.add_argument("--zoo_seeds", type=int, default=1, help="of Stable-Baselines3")
    parser.add_argument("--repeats", type=int, default=5, help="timings of each side, in turns")
    parser.add_argument("--language", help="run folder of a language policy; made if not there")
    parser.add_argument("--folder", default="runs/benchmarks/baselines")
    parser.add_argument("--write", action="store_true", help="append to RESULTS_ARCHIVE.md")
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


def zoo_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield (
        "| agent, environment | steps | zoo, one run | ours, mean | 95% interval | every seed "
        "| CPU-s | Stable-Baselines3 | its CPU-s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for name in options.zoo_names:
        config = PUBLISHED_RETURNS[name]
        ours = kept(folder, f"zoo_{name}", lambda c=config: train_ours(c, ZOO_SEEDS))
        theirs = [
            kept(folder, f"sb3_{name}_{seed}", lambda n=name, s=seed: train_sb3(n, s))
            for seed in range(options.zoo_seeds)
        ]
        yield zoo_row(name, ours, theirs)


def zoo_row(name: str, ours: dict[str, Any], theirs: list[dict[str, float]]) -> str:
    from seed_statistics import bootstrap_interval

    low, high = bootstrap_interval(ours["returns"], np.mean)
    cells = [
        name,
        f"{ours['steps']:,}",
        f"{PUBLISHED[name]:.1f}",
        f"{np.mean(ours['returns']):.1f}",
    ]
    cells += [f"{low:.1f} to {high:.1f}", ", ".join(f"{value:.1f}" for value in ours["returns"])]
    cells += [f"{ours['seconds']:.0f}"]
    cells += [", ".join(f"{run[key]:.{n}f}" for run in theirs) for key, n in COLUMNS_OF_THEIRS]
    return f"| {' | '.join(cells)} |"


def returns_row(name: str, found: dict[str, Any], target: float | None) -> str:
    from seed_statistics import bootstrap_interval, interquartile_mean

    low, high = bootstrap_interval(found["returns"])
    cells = [name, f"{found['steps']:,}", *([] if target is None else [str(target)])]
    cells += [f"{interquartile_mean(found['returns']):.1f}", f"{low:.1f} to {high:.1f}"]
    cells += [", ".join(f"{value:.1f}" for value in found["returns"]), f"{found['seconds']:.0f}"]
    return f"| {' | '.join(cells)} |"


# --- speed ---------------------------------------------------------------------------------------


def speed_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| zoo's settings | ours, steps per CPU-second | Stable-Baselines3 | ratio | target |"
    yield "|---|---|---|---|---|"
    for name in ZOO:
        for same, target in enumerate(SPEED_TARGETS[name]):
            row = f"{name}, {'the same environments' if same else 'our environments'}"
            found = kept(
                folder,
                f"speed_{name}_{options.repeats}{'_same' * same}",
                lambda n=name, s=same: time_in_turns(n, options.repeats, bool(s)),
            )
            yield speed_row(row, found, target)


def population_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| PPO on CartPole | ours, steps per CPU-second | Stable-Baselines3 | ratio | target |"
    yield "|---|---|---|---|---|"
    key = f"speed_population_{options.repeats}"
    found = kept(folder, key, lambda: time_population(options.repeats))
    yield speed_row("population of 8 at our settings, against one of SB3", found, 10)


def speed_row(name: str, found: dict[str, list[float]], target: float) -> str:
    ours, theirs = np.median(found["ours"]), np.median(found["sb3"])
    return f"| {name} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} | {target} |"


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


def grid_part(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    rates = kept(folder, f"grid_{options.repeats}", lambda: grid_rates(options.repeats))
    yield "| grid world, 4,096 copies, million steps per second | median | every | target |"
    yield "|---|---|---|---|"
    every = ", ".join(f"{value / 1e6:.1f}" for value in rates)
    median = f"{np.median(rates) / 1e6:.1f}"
    yield f"| `VectorEnv.step`, autoreset and final observations | {median} | {every} | 30 |"


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


PARTS: dict[str, Callable[[argparse.Namespace, Path], Iterator[str]]] = {
    "returns": returns_part,
    "sb3": sb3_part,
    "zoo": zoo_part,
    "speed": speed_part,
    "population": population_part,
    "time": time_part,
    "cql": cql_part,
    "grid": grid_part,
    "gridworld": gridworld_part,
}


def processor() -> str:
    """What the machine computes with; ratios differ between makers."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def append(lines: list[str]) -> None:
    """Adds the tables to RESULTS_ARCHIVE.md, with what it takes to make them again."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    heading = f"## Classic agents, {datetime.date.today()}"
    command = f"python {' '.join(sys.argv)}".replace(str(ROOT) + "/", "")
    about = (
        f"Commit {commit.strip()}, `{command}`, {processor()}, one thread, "
        f"load {os.getloadavg()[0]:.0f}."
    )
    with open(ROOT / "benchmarks" / "RESULTS_ARCHIVE.md", "a", encoding="utf-8") as file:
        file.write("\n".join(["", heading, "", about, "", *lines]))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="stable_baselines3")
    main()
