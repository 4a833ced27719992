"""A search as a run folder, which the same command continues wherever it was killed.

    RUN/lineage.jsonl   evolution: a line for each member of each generation
    RUN/trials.jsonl    trials: a line for each evaluation
    RUN/best/           the member that the search returns, as it was when it was evaluated
    RUN/checkpoints/    evolution: everything that the next generation depends on
    RUN/stop            a file of this name, made by anybody, ends the search in good order

A generation, or a trial, that was cut is done again, and comes out the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import count, repeat
from typing import Any

import numpy as np

from lactchain.baselines.member_envs import spaces_of
from lactchain.baselines.settings import WorldConfig
from lactchain.baselines.state_files import load_checkpoint, save_checkpoint
from lactchain.baselines.training import read_agent, save_agent
from lactchain.config.tunable import tunable_values
from lactchain.runs.console import GrowingTable
from lactchain.runs.process import refuse_unless_inexact
from lactchain.runs.progress import under_way
from lactchain.runs.run import Run, read_metrics
from lactchain.search.agents import Member, agent_class
from lactchain.search.evolution import Child, Evolution, Generation, Species, ancestors, credit
from lactchain.search.members import join, take
from lactchain.search.trials import trials_of
from lactchain.storage.files import (
    append_json_lines,
    read_sealed_lines,
    seal,
    write_json_lines,
)

KEEP_CHECKPOINTS = 2

log = logging.getLogger(__name__)


def evolve(config: Any, run: Run, species: Species) -> dict[str, Any]:
    """Generations until the target of a `SearchConfig` is met, or all are done; the summary."""
    evolution = Evolution(species, config.evolution, config.run.seed, config.target)
    resume(run, evolution)
    table = GrowingTable()
    with under_way("generation", config.evolution.num_generations, most=True) as step:
        step.resumed(evolution.number)
        for generation in evolution:
            record_generation(run, generation)
            table.add(row_of(generation))
            if config.language is None:
                save_best(run, config.environment, evolution.champion)
            # Last: what is done again writes the rest again.
            folder, state = run.path("checkpoints"), evolution.state_dict()
            mark = run.mark_metrics()
            save_checkpoint(folder, evolution.number, state, KEEP_CHECKPOINTS, mark)
            step.at(evolution.number)
            if run.told_to_end:
                break
    champion, lineage = evolution.champion, evolution.lineage
    outcome = species.certify(champion)
    species.close()
    return {
        "method": "evolution",
        "seed": config.run.seed,
        "num_generations": evolution.number,
        "num_env_steps": species.num_env_steps,
        "target_met": None if config.target is None else evolution.certified is not None,
        "best/fitness": champion.fitness,
        "best/episode_return": outcome,
        "best/tunables": tunable_values(champion.config),
        "best/ancestors": ancestors(champion, lineage),
        "credit": credit(lineage),
    } | species.facts(champion)


def try_out(config: Any, run: Run) -> dict[str, Any]:
    """Trials until the target is met, or the last one is done; the summary. See `evolve`."""
    seed, path = config.run.seed, run.path("trials.jsonl")
    trials = trials_of(
        config.method, config.subject, config.environment, config.space, config.trials, seed
    )
    lines = whole_trials(read_sealed_lines(path, run.id))
    write_json_lines(path, map(seal, lines, count(), repeat(run.id)))
    trials.replay(lines)
    run.truncate_metrics(trials.arena.num_env_steps if lines else -1)
    check_metrics(run, lines)
    best = max(lines, key=lambda line: line["fitness"], default=None)
    met = best is not None and best["certified"]
    table = GrowingTable()
    with under_way("trial", config.trials.num_trials, most=True) as step:
        step.resumed(trials.number)
        for report in trials if not met else ():
            met = config.target is not None and trials.certify(report, config.target)
            line = {**report.record(), "certified": met}
            if best is None or met or report.fitness > best["fitness"]:
                best = line
                save_best(run, config.environment, report)
            metrics = {"search/best_fitness": best["fitness"], "search/fitness": report.fitness}
            run.log(metrics, step=report.num_env_steps)
            run.mark_metrics()
            # Behind the metrics: what no line tells is done again, and they are cut.
            append_json_lines(path, [seal(line, len(lines), run.id)], synced=True)
            lines.append(line)
            if report.is_final:
                step.at(report.trial + 1)
                shown = {"trial": report.trial, "fitness": report.fitness}
                table.add(shown | {"best": best["fitness"], "steps": f"{report.num_env_steps:,}"})
            if met or run.told_to_end:
                break
    agent = read_agent(run.directory / "best")
    return {
        "method": config.method,
        "seed": seed,
        "num_trials": trials.number,
        "num_env_steps": trials.arena.num_env_steps,
        "target_met": None if config.target is None else met,
        "best/fitness": best["fitness"],
        "best/episode_return": trials.arena.certify(Child(agent.config, take(agent, 0), {})),
        "best/tunables": best["tunables"],
        "best/trial": best["trial"],
    }


def record_generation(run: Run, generation: Generation) -> None:
    """Adds a generation to the lineage and to the metrics."""
    append_json_lines(run.path("lineage.jsonl"), generation.lineage(), synced=True)
    run.log(
        {
            "search/best_fitness": generation.champion.fitness,
            "search/fitness": mean_fitness(generation),
            "search/generation": generation.number,
        },
        step=generation.num_env_steps,
    )


def row_of(generation: Generation) -> dict[str, Any]:
    """What people see of a generation."""
    return {
        "generation": generation.number,
        "fitness": mean_fitness(generation),
        "best": generation.champion.fitness,
        "steps": f"{generation.num_env_steps:,}",
    }


def mean_fitness(generation: Generation) -> float:
    """Of the members whose fitness is a number; 0 where none is."""
    fitness = [m.fitness for m in generation.members if np.isfinite(m.fitness)]
    return sum(fitness) / max(len(fitness), 1)


def resume(run: Run, evolution: Evolution) -> None:
    """Goes on after the last whole generation; the lineage is written anew as it was then."""
    state, path = load_checkpoint(run.path("checkpoints")), run.path("lineage.jsonl")
    if state is not None:
        evolution.load_state_dict(state)
    write_json_lines(path, evolution.lineage)
    steps = evolution.species.num_env_steps if evolution.number else -1
    run.truncate_metrics(steps, None if state is None else state["metrics"])


def whole_trials(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of trials that came to their end, or met the target."""
    over = {line["trial"] for line in lines if line["is_final"] or line["certified"]}
    return [line for line in lines if line["trial"] in over]


def check_metrics(run: Run, lines: Sequence[dict[str, Any]]) -> None:
    """Adds the metrics that are missing at the end.

    Raises:
        DataError: the others are not what the evaluations of trials came to.
    """
    best, expected = -np.inf, []
    for line in lines:
        best = line["fitness"] if line["certified"] else max(best, line["fitness"])
        told = {"search/best_fitness": best, "search/fitness": line["fitness"]}
        expected.append({"step": line["num_env_steps"]} | told)
    found = [{k: v for k, v in r.items() if k != "time"} for r in read_metrics(run.directory)]
    if found != expected[: len(found)]:
        refuse_unless_inexact(
            f"{run.path('metrics.jsonl')}: damaged, it does not tell what trials.jsonl does; "
            "put a copy back, or remove it"
        )
    elif missing := expected[len(found) :]:
        name = run.path("metrics.jsonl")
        log.warning("%s: %d records are written anew from trials.jsonl", name, len(missing))
        for record in missing:
            run.log({k: v for k, v in record.items() if k != "step"}, step=record["step"])
        run.mark_metrics()


def save_best(run: Run, world: WorldConfig, member: Member) -> None:
    """Writes the agent that the search would return now."""
    agent = join(agent_class(member.config), [member], *spaces_of(world), seed=0)
    save_agent(run.path("best"), agent, 0, world)
