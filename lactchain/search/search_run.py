"""A search as a run folder, which the same command continues wherever it was killed.

    RUN/lineage.jsonl   a line for each member of each generation
    RUN/best/           the member that the search returns, as it was when it was evaluated
    RUN/checkpoints/    everything that the next generation depends on
    RUN/stop            a file of this name, made by anybody, ends the search in good order

A generation that was cut is done again, and comes out the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lactchain.baselines.state_files import load_checkpoint, save_checkpoint
from lactchain.config.tunable import tunable_values
from lactchain.runs.console import GrowingTable
from lactchain.runs.progress import under_way
from lactchain.runs.run import Run
from lactchain.search.evolution import Evolution, Generation, Species, ancestors, credit
from lactchain.storage.files import append_json_lines, write_json_lines


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
            species.save(evolution.champion, run.path("best"))
            # Last: what is done again writes the rest again.
            folder, state = run.path("checkpoints"), evolution.state_dict()
            save_checkpoint(folder, evolution.number, state, run.mark_metrics())
            step.at(evolution.number)
            if run.told_to_end:
                break
    champion, lineage = evolution.champion, evolution.lineage
    outcome = species.certify(champion)
    species.close()
    return {
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
