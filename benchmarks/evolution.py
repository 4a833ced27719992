"""The race: environment steps until a policy is certified, evolution against trials.

    python benchmarks/evolution.py
    python benchmarks/evolution.py --world Acrobot-v1

The same agent (PPO), the ranges of rl-baselines3-zoo's sampler and the same counter for all: every
step of training and of selecting evaluations (5 greedy episodes each) counts. Whoever has a member
or trial whose selecting evaluation reaches the threshold (CartPole 475, Acrobot -100) has it
certified by 50 fresh episodes, which count for nobody; the clock stops at the first that passes.

- evolution: generations of a small population; asked after each generation;
- random search, TPE, TPE with median pruning (Optuna): trials of 100,000 steps at most, asked on
  the way, at every 10,000 steps. With --to_the_end also, from the same trials without pruning, a
  second clock for who asks at the end of each trial only, as the zoo does: evaluations on the way
  are not on it. That takes three times as long.

A run that is not certified within --budget steps stands for more than that. Each leaves a file in
--folder and is not done again when it is there. Writes the budget curves as a picture (return of
the best selecting evaluation so far; mean over seeds, 95% bootstrap interval) and, with --write,
appends the table to benchmarks/RESULTS.md.
"""

import argparse
import datetime
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lactchain.baselines.settings import PPOConfig, WorldConfig
from lactchain.genes import gene
from lactchain.search.settings import EvolutionConfig, SpaceConfig, TrialsConfig

ROOT = Path(__file__).parent.parent
THRESHOLDS = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0}
WORST = {"CartPole-v1": 8.0, "Acrobot-v1": -500.0}
METHODS = ("evolution", "random", "tpe", "tpe_pruned")
NAMES = {
    "evolution": "evolution",
    "random": "random search",
    "random_final": "random search, asked at the end of trials",
    "tpe": "TPE",
    "tpe_final": "TPE, asked at the end of trials",
    "tpe_pruned": "TPE, median pruning",
}
EVOLUTION = EvolutionConfig(
    population_size=6, tournament_size=3, num_generations=1000, steps_per_generation=512
)
TRIALS = TrialsConfig(num_trials=1000, num_episodes=5)
SPACE = SpaceConfig(architectures=[[64], [64, 64], [256, 256]], activations=["tanh", "relu"])


@dataclass(frozen=True)
class RacePPOConfig(PPOConfig):
    """PPO with the zoo's range of learning rates; its other genes have the zoo's ranges anyway."""

    learning_rate: float = gene(3e-4, 1e-5, 1.0, log=True)


# 512 rows a rollout, so that every batch of the range fits.
AGENT = RacePPOConfig(num_envs=8, num_steps=64)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", default="CartPole-v1", choices=THRESHOLDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--budget", type=int, default=400_000, help="environment steps of a run")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", default="runs/benchmarks/evolution")
    parser.add_argument("--to_the_end", action="store_true", help="the second clock as well")
    parser.add_argument("--write", action="store_true", help="append to benchmarks/RESULTS.md")
    options = parser.parse_args()
    folder = ROOT / options.folder / options.world
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(options, folder, method, seed) for seed in options.seeds for method in options.methods]
    # Each worker imports torch for itself: a forked one may hang in its threads.
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        results = pool.starmap(race, jobs, chunksize=1)
    clocks = by_clock(results, options)
    lines = markdown(clocks, options.budget, results)
    picture = ROOT / "benchmarks" / f"evolution_{options.world.partition('-')[0].lower()}.svg"
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
    needs = {"budget": options.budget, "to_the_end": options.to_the_end}
    if path.exists():
        result = json.loads(path.read_text())
        if all(result[name] >= need for name, need in needs.items()):
            return result
    started, cpu = time.perf_counter(), time.process_time()
    run = evolve if method == "evolution" else try_out
    result = run(options, method, seed)
    result |= {
        **needs,
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

    world = WorldConfig(id=options.world)
    species = AgentSpecies(AGENT, world, SPACE, EVOLUTION, seed)
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
    """Trials until a trial's end is certified; with pruning, until any evaluation is."""
    from lactchain.search.trials import trials_of

    pruned = method == "tpe_pruned"
    world, settings = WorldConfig(id=options.world), replace(TRIALS, prune=pruned)
    trials = trials_of(
        "random" if method == "random" else "tpe", AGENT, world, SPACE, settings, seed
    )
    clock = Clock(options.world)
    final = Clock(options.world)
    for report in trials:

        def certified(report=report) -> bool:
            return trials.certify(report, clock.threshold)

        clock.hear(report.num_env_steps, report.fitness, certified)
        if report.is_final:
            final.hear(report.num_final_env_steps, report.fitness, certified)
        both = options.to_the_end and not pruned
        over = final.solved if both else clock.solved
        steps = report.num_final_env_steps if both else report.num_env_steps
        if over or steps >= options.budget:
            break
    clocks = {method: [clock.points, clock.solved]}
    if both:
        clocks[f"{method}_final"] = [final.points, final.solved]
    return {"clocks": clocks}


class Clock:
    """What has been found after how many steps, until something is certified."""

    def __init__(self, world: str) -> None:
        self.threshold, self.worst = THRESHOLDS[world], WORST[world]
        self.points: list[list[float]] = []
        self.solved: int | None = None

    def hear(self, steps: int, fitness: float, certified: Callable[[], bool]) -> None:
        """An evaluation, made after so many steps."""
        if self.solved is not None:
            return
        best = max(fitness, self.points[-1][1] if self.points else self.worst)
        self.points.append([steps, best])
        if certified():
            self.solved = steps


# --- what came out -------------------------------------------------------------------------------


def by_clock(results: list[dict], options: argparse.Namespace) -> dict[str, list[list]]:
    """Clock → points and steps of each seed, within the budget, in the order of `NAMES`."""
    found: dict[str, list[list]] = {}
    for name in NAMES:
        for result in results:
            if name in result["clocks"] and (options.to_the_end or name in METHODS):
                points, solved = result["clocks"][name]
                within = [point for point in points if point[0] <= options.budget]
                in_time = solved is not None and solved <= options.budget
                found.setdefault(name, []).append(
                    [within or points[:1], solved if in_time else None]
                )
    return found


def markdown(clocks: dict[str, list[list]], budget: int, results: list[dict]) -> list[str]:
    """The tables: steps of each seed, and the credit of mutations."""
    from lactchain.baselines.evaluation import bootstrap_interval, interquartile_mean

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
    from lactchain.baselines.evaluation import bootstrap_interval
    from lactchain.inspection.plots import band_chart

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


def best_by(points: list[list[float]], step: float) -> float:
    """The best evaluation made within so many steps."""
    return max(fitness for s, fitness in points if s <= step)


def append(options: argparse.Namespace, lines: list[str], picture: Path) -> None:
    """Adds the tables to RESULTS.md, with what it takes to make them again."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    heading = f"## Search race, {options.world}, {datetime.date.today()}"
    command = f"python benchmarks/evolution.py --world {options.world} --budget {options.budget}"
    command += " --to_the_end" * options.to_the_end
    about = (
        f"Commit {commit.strip()}, `{command}`, 2 cores. Curves: [{picture.name}]({picture.name})."
    )
    with open(ROOT / "benchmarks" / "RESULTS.md", "a", encoding="utf-8") as file:
        file.write("\n".join(["", heading, "", about, "", *lines, ""]))


if __name__ == "__main__":
    main()
