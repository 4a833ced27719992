"""The race: environment steps until a policy is certified, evolution against trials.

    python benchmarks/evolution.py
    python benchmarks/evolution.py --world Acrobot-v1

The same agent (PPO, rollouts of 8 × 32 steps, the zoo's for CartPole), the ranges of
rl-baselines3-zoo's sampler and the same counter for all: every step of training and of selecting
evaluations (two greedy episodes each) counts. Whoever has a member or trial whose selecting
evaluation reaches the threshold (CartPole 475, Acrobot -100) has it certified by 50 fresh episodes,
which count for nobody; the clock stops at the first that passes.

- evolution: generations of a small population; asked after each generation;
- random search, TPE, TPE with median pruning (Optuna): trials of 100,000 steps at most, asked on
  the way, at every 10,000 steps;
- random search and TPE asked at the end of each trial only, as they are normally used: a second
  clock of the same runs, which evaluations on the way are not on.

The ranges are those of the zoo's sampler today (`current`) or until 2024 (`former`: learning rates
up to 1). Departures from it, for all alike: rollouts have one length; the discount, the decay of
advantages, the size of batches and the number of epochs are any numbers between the zoo's least and
greatest, not those of a list.

A run that is not certified within --budget steps stands for more than that. Each leaves a file in
--folder and is not done again when it is there. Writes the budget curves as a picture (return of
the best selecting evaluation so far; mean over seeds, 95% bootstrap interval) and, with --write,
appends the table to benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from seed_statistics import bootstrap_interval, interquartile_mean

from lactchain.baselines.settings import PPOConfig, WorldConfig
from lactchain.inspection.markup import Markup, shapes
from lactchain.inspection.plots import LINE_COLOURS, Axes, padded
from lactchain.search.settings import EvolutionConfig, MutationConfig, SpaceConfig, TrialsConfig
from lactchain.tunable import tunable

if TYPE_CHECKING:
    from lactchain.search.trials import Report, Trials

ROOT = Path(__file__).parent.parent
THRESHOLDS = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0}
WORST = {"CartPole-v1": 8.0, "Acrobot-v1": -500.0}
METHODS = ("evolution", "random", "tpe")
NAMES = {
    "evolution": "evolution",
    "random": "random search, asked on the way",
    "random_final": "random search, asked at the end of trials",
    "tpe": "TPE, asked on the way",
    "tpe_final": "TPE, asked at the end of trials",
    "tpe_pruned": "TPE with median pruning, asked on the way",
}
NUM_EPISODES = 2
EVOLUTION = EvolutionConfig(
    population_size=6,
    tournament_size=3,
    num_generations=1000,
    steps_per_generation=512,
    num_episodes=NUM_EPISODES,
    elite="generation",
    mutation=MutationConfig(
        weights={"none": 0.2, "hyper": 0.7, "architecture": 0.05, "activation": 0.05},
        tunable_step=0.2,
        num_tunables=9,
    ),
)
TRIALS = TrialsConfig(num_trials=1000, num_episodes=NUM_EPISODES)
NEVER_PRUNED = 5
"""Trials that Optuna's median pruner spares at the start: until then TPE with it is TPE."""


@dataclass(frozen=True)
class CurrentPPOConfig(PPOConfig):
    """PPO with the ranges of rl_zoo3/hyperparams_opt.py at 0a9df50."""

    learning_rate: float = tunable(3e-4, 1e-5, 2e-3, log=True)
    gamma: float = tunable(0.99, 0.97, 0.9999)
    gae_lambda: float = tunable(0.95, 0.9, 0.9999)
    entropy_coef: float = tunable(0.0, 1e-8, 0.1, log=True)
    max_grad_norm: float = tunable(0.5, 0.3, 2.0)
    batch_size: int = tunable(64, 32, 512, log=True, integer=True)


@dataclass(frozen=True)
class FormerPPOConfig(PPOConfig):
    """PPO with the ranges of rl_zoo3/hyperparams_opt.py at d477a07; the others are PPO's own."""

    learning_rate: float = tunable(3e-4, 1e-5, 1.0, log=True)
    entropy_coef: float = tunable(0.0, 1e-8, 0.1, log=True)


# 256 rows a rollout; larger batches do not fit, and are drawn again.
AGENTS = {
    "current": CurrentPPOConfig(num_envs=8, num_steps=32),
    "former": FormerPPOConfig(num_envs=8, num_steps=32),
}
CURRENT_TUNABLES = [
    "learning_rate",
    "gamma",
    "gae_lambda",
    "clip_range",
    "entropy_coef",
    "max_grad_norm",
    "batch_size",
    "num_epochs",
]
TUNABLES = {"current": CURRENT_TUNABLES, "former": [*CURRENT_TUNABLES, "value_coef"]}


def space(ranges: str) -> SpaceConfig:
    """What is searched: the zoo's tunables, networks and activations."""
    networks = [[64], [64, 64], [256, 256]]
    return SpaceConfig(TUNABLES[ranges], architectures=networks, activations=["tanh", "relu"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", default="CartPole-v1", choices=THRESHOLDS)
    parser.add_argument("--ranges", default="current", choices=AGENTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--budget", type=int, default=400_000, help="environment steps of a run")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", default="runs/benchmarks/evolution")
    parser.add_argument("--write", action="store_true", help="append to benchmarks/RESULTS.md")
    options = parser.parse_args()
    folder = ROOT / options.folder / options.world / options.ranges
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(options, folder, method, seed) for seed in options.seeds for method in options.methods]
    # Each worker imports torch for itself: a forked one may hang in its threads.
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        results = pool.starmap(race, jobs, chunksize=1)
    clocks = by_clock(results, options.budget)
    lines = markdown(clocks, options.budget, results)
    picture = ROOT / "benchmarks" / f"evolution_{stem(options)}.svg"
    picture.write_text(chart(clocks, options.world))
    sys.stdout.write("\n".join([*lines, f"curves: {picture}", ""]))
    if options.write:
        append(options, lines, picture)


# --- runs ----------------------------------------------------------------------------------------


def race(options: argparse.Namespace, folder: Path, method: str, seed: int) -> dict:
    """One run of one method; its points and where its clocks stopped."""
    import torch

    torch.set_num_threads(1)
    path = folder / f"{method}_{seed}.json"
    if path.exists():
        result = json.loads(path.read_text())
        if result["budget"] >= options.budget:
            return result
    started, cpu = time.perf_counter(), time.process_time()
    run = evolve if method == "evolution" else try_out
    result = run(options, method, seed)
    result |= {
        "budget": options.budget,
        "method": method,
        "seed": seed,
        "wall_seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
    }
    path.write_text(json.dumps(result))
    return result


def evolve(options: argparse.Namespace, _: str, seed: int) -> dict:
    """Generations until one has a member that is certified."""
    from lactchain.search.agents import AgentSpecies
    from lactchain.search.evolution import Evolution, credit

    agent, world = AGENTS[options.ranges], WorldConfig(id=options.world)
    species = AgentSpecies(agent, world, space(options.ranges), EVOLUTION, seed)
    evolution = Evolution(species, EVOLUTION, seed, THRESHOLDS[options.world])
    points, lineage, solved = [], [], None
    for generation in evolution:
        points.append([generation.num_env_steps, generation.champion.fitness])
        lineage += generation.lineage()
        if generation.certified is not None:
            solved = generation.num_env_steps
        if generation.num_env_steps >= options.budget:
            break
    return {"clocks": {"evolution": [points, solved]}, "credit": credit(lineage)}


def try_out(options: argparse.Namespace, method: str, seed: int) -> dict:
    """Trials until the end of one is certified; TPE also with pruning."""
    trials = trials_of_race(options, method, seed, prune=False)
    on_the_way, final = Clock(options.world), Clock(options.world)
    follow(trials, on_the_way, final, options.budget)
    clocks = {method: on_the_way, f"{method}_final": final}
    if method == "tpe":
        clocks["tpe_pruned"] = on_the_way
        if on_the_way.solved is None or on_the_way.num_trials > NEVER_PRUNED:
            pruned = clocks["tpe_pruned"] = Clock(options.world)
            follow(trials_of_race(options, method, seed, prune=True), pruned, None, options.budget)
    return {"clocks": {name: [clock.points, clock.solved] for name, clock in clocks.items()}}


def trials_of_race(options: argparse.Namespace, method: str, seed: int, prune: bool) -> Trials:
    """The trials of a sampler."""
    from lactchain.search.trials import trials_of

    agent, world = AGENTS[options.ranges], WorldConfig(id=options.world)
    settings = replace(TRIALS, prune=prune)
    return trials_of(method, agent, world, space(options.ranges), settings, seed)


def follow(trials: Trials, on_the_way: Clock, final: Clock | None, budget: int) -> None:
    """Tells the clocks of trials until the slower one has stopped, or is beyond the budget."""
    for report in trials:

        def certified(report: Report = report) -> bool:
            return trials.certify(report, on_the_way.threshold)

        on_the_way.hear(report.num_env_steps, report.fitness, certified, report.trial)
        steps, slower = report.num_env_steps, on_the_way
        if final is not None:
            steps, slower = report.num_final_env_steps, final
            if report.is_final:
                final.hear(steps, report.fitness, certified, report.trial)
        if slower.solved is not None or steps >= budget:
            return


class Clock:
    """What has been found after how many steps, until something is certified."""

    def __init__(self, world: str) -> None:
        self.threshold, self.worst = THRESHOLDS[world], WORST[world]
        self.points: list[list[float]] = []
        self.solved: int | None = None
        self.num_trials = 0

    def hear(
        self, steps: int, fitness: float, certified: Callable[[], bool], trial: int = 0
    ) -> None:
        """An evaluation, made after so many steps, in the trial of that number."""
        if self.solved is not None:
            return
        self.num_trials = trial + 1
        best = max(fitness, self.points[-1][1] if self.points else self.worst)
        self.points.append([steps, best])
        if certified():
            self.solved = steps


# --- what came out -------------------------------------------------------------------------------


def by_clock(results: list[dict], budget: int) -> dict[str, list[list]]:
    """Clock → points and steps of each seed, within the budget, in the order of `NAMES`."""
    found: dict[str, list[list]] = {}
    for name in NAMES:
        for result in results:
            if name in result["clocks"]:
                points, solved = result["clocks"][name]
                within = [point for point in points if point[0] <= budget]
                in_time = solved is not None and solved <= budget
                found.setdefault(name, []).append(
                    [within or points[:1], solved if in_time else None]
                )
    return found


def markdown(clocks: dict[str, list[list]], budget: int, results: list[dict]) -> list[str]:
    """The tables: steps of each seed, and the credit of mutations."""
    lines = [
        "| method | steps of each seed | certified | IQM | 95% interval | IQM / evolution's |",
        "|---|---|---|---|---|---|",
    ]
    means = {
        name: interquartile_mean([solved or budget for _, solved in runs])
        for name, runs in clocks.items()
    }
    for name, runs in clocks.items():
        steps = ", ".join(f"{s:,}" if s else f"> {budget:,}" for _, s in runs)
        low, high = bootstrap_interval([s or budget for _, s in runs])
        number = sum(s is not None for _, s in runs)
        ratio = f"{means[name] / means['evolution']:.1f}" if "evolution" in means else ""
        lines.append(
            f"| {NAMES[name]} | {steps} | {number} of {len(runs)} | {means[name]:,.0f} "
            f"| {low:,.0f} – {high:,.0f} | {ratio} |"
        )
    return [*lines, "", *credit_table(results), "", *cost(results)]


def credit_table(results: list[dict]) -> list[str]:
    """What each kind of mutation brought, over all seeds."""
    kinds: dict[str, list[dict]] = {}
    for result in results:
        for kind, figures in result.get("credit", {}).items():
            kinds.setdefault(kind, []).append(figures)
    lines = ["| mutation | children | mean gain | fitter than the parent |", "|---|---|---|---|"]
    for kind, rows in kinds.items():
        counts = [row["count"] for row in rows]
        gain = np.average([row["mean_gain"] for row in rows], weights=counts)
        improved = np.average([row["improved"] for row in rows], weights=counts)
        lines.append(f"| {kind} | {sum(counts)} | {gain:+.1f} | {improved:.0%} |")
    return lines


def cost(results: list[dict]) -> list[str]:
    """What it took to find out."""
    cpu = sum(result["cpu_seconds"] for result in results)
    return [f"{len(results)} runs took {cpu:,.0f} CPU-seconds in all."]


def chart(clocks: dict[str, list[list]], world: str) -> str:
    """Best selecting evaluation so far over steps; mean of the seeds with its interval."""
    steps = [s for runs in clocks.values() for points, _ in runs for s, _ in points]
    places = np.geomspace(min(steps), max(steps), 60)
    bands = {}
    for name, runs in clocks.items():
        # A curve begins where every seed has been evaluated once.
        xs = places[places >= max(points[0][0] for points, _ in runs)]
        scores = np.array([[best_by(points, x) for points, _ in runs] for x in xs])
        limits = np.array([bootstrap_interval(row, np.mean, num_samples=500) for row in scores])
        bands[NAMES[name]] = (xs, scores.mean(1), limits[:, 0], limits[:, 1])
    title = f"{world}: best selecting evaluation so far"
    return str(band_chart(title, bands, "environment steps, all counted"))


Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def band_chart(title: str, bands: dict[str, Band], x_label: str) -> Markup:
    """Curves with intervals by name, each (x, middle, low, high); x, above 0, on a log scale."""
    exponents = [math.log10(x) for xs, *_ in bands.values() for x in xs]
    axes = Axes(
        padded(exponents, 0.0),
        padded([y for _, *ys in bands.values() for line in ys for y in line], 0.05),
        width=640,
        height=340,
        top=30 + 16 * len(bands),
    )
    drawn = []
    for n, (name, (xs, middle, low, high)) in enumerate(bands.items()):
        colour, places = LINE_COLOURS[n % len(LINE_COLOURS)], [axes.x(math.log10(x)) for x in xs]
        rim = [*zip(places, map(axes.y, low), strict=True)]
        rim += [*zip(places, map(axes.y, high), strict=True)][::-1]
        drawn.append(shapes.polygon(rim, colour, opacity=0.15))
        drawn.append(shapes.polyline(zip(places, map(axes.y, middle), strict=True), colour))
        drawn.append(shapes.rect(axes.left, 24 + 16 * n, 9, 9, colour))
        drawn.append(shapes.text(axes.left + 14, 33 + 16 * n, name))
    first, last = math.ceil(min(exponents) * 3 - 1e-9), math.floor(max(exponents) * 3 + 1e-9)
    marks = [(axes.x(math.log10(x)), f"{x:,.0f}") for x in map(rounded, range(first, last + 1))]
    return axes.draw(title, x_label, *drawn, x_marks=marks)


def rounded(thirds: int) -> float:
    """The number of the series 1, 2, 5, 10, … that is about ten to the power of so many thirds."""
    return (1, 2, 5)[thirds % 3] * 10.0 ** (thirds // 3)


def best_by(points: list[list[float]], step: float) -> float:
    """The best evaluation made within so many steps."""
    return max(fitness for s, fitness in points if s <= step)


def stem(options: argparse.Namespace) -> str:
    """Of the picture's name: the world, and the ranges if they are not the current ones."""
    world = options.world.partition("-")[0].lower()
    return world if options.ranges == "current" else f"{world}_{options.ranges}"


def append(options: argparse.Namespace, lines: list[str], picture: Path) -> None:
    """Adds the tables to RESULTS.md, with what it takes to make them again."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    heading = f"## Search race, {options.world}, {options.ranges} ranges, {datetime.date.today()}"
    command = f"python benchmarks/evolution.py --world {options.world} --ranges {options.ranges}"
    command += f" --budget {options.budget} --seeds {' '.join(map(str, options.seeds))}"
    about = (
        f"Commit {commit.strip()}, `{command}`, 2 cores. Curves: [{picture.name}]({picture.name})."
    )
    with open(ROOT / "benchmarks" / "RESULTS.md", "a", encoding="utf-8") as file:
        file.write("\n".join(["", heading, "", about, "", *lines, ""]))


if __name__ == "__main__":
    main()
