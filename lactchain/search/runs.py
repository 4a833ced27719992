"""A search as a run folder, which the same command continues wherever it was killed.

    RUN/lineage.jsonl   evolution: a line for each member of each generation
    RUN/trials.jsonl    trials: a line for each evaluation
    RUN/best/           the member that the search returns, as it was when it was evaluated
    RUN/checkpoints/    evolution: everything that the next generation depends on
    RUN/stop            a file of this name, made by anybody, ends the search in good order

A generation, or a trial, that was cut is done again, and comes out the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lactchain.baselines.member_envs import spaces_of
from lactchain.baselines.settings import WorldConfig
from lactchain.baselines.state_files import load_checkpoint, save_checkpoint
from lactchain.baselines.training import save_agent
from lactchain.files import append_json_lines, read_json_lines, write_json_lines
from lactchain.run import Run
from lactchain.search.agents import agent_class
from lactchain.search.evolution import Evolution, Generation, Individual
from lactchain.search.members import Learnt, join

KEEP_CHECKPOINTS = 2


def record_generation(run: Run, generation: Generation) -> None:
    """Adds a generation to the lineage and to the metrics."""
    lines = generation.lineage()
    append_json_lines(run.path("lineage.jsonl"), lines)
    fitness = [line["fitness"] for line in lines if line["fitness"] is not None]
    run.log(
        {
            "search/best_fitness": generation.champion.fitness,
            "search/fitness": sum(fitness) / max(len(fitness), 1),
            "search/generation": generation.number,
        },
        step=generation.num_env_steps,
    )


def save(run: Run, evolution: Evolution) -> None:
    """Writes a checkpoint after a generation, and removes old ones."""
    folder, state = run.path("checkpoints"), evolution.state_dict()
    save_checkpoint(folder, evolution.number, state, KEEP_CHECKPOINTS)


def resume(run: Run, evolution: Evolution) -> None:
    """Goes on after the last whole generation; records of a later one are removed."""
    state = load_checkpoint(run.path("checkpoints"))
    if state is not None:
        evolution.load_state_dict(state)
    path = run.path("lineage.jsonl")
    kept = [line for line in read_json_lines(path) if line["generation"] < evolution.number]
    write_json_lines(path, kept)
    run.truncate_metrics(evolution.species.num_env_steps if evolution.number else -1)


def whole_trials(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of trials that came to their end, or met the target."""
    over = {line["trial"] for line in lines if line["is_final"] or line["certified"]}
    return [line for line in lines if line["trial"] in over]


def ancestors(member: Individual, lineage: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The member and those that it comes from, the newcomer last."""
    by_id = {line["id"]: line for line in lineage}
    chain, id = [], member.id
    while id is not None:
        chain.append({key: by_id[id][key] for key in ("id", "mutation", "change", "fitness")})
        id = by_id[id]["parent"]
    return chain


def save_best(run: Run, world: WorldConfig, config: Any, learnt: Learnt) -> None:
    """Writes the agent that the search would return now."""
    spaces = spaces_of(world)
    agent = join(agent_class(config), [config], [learnt], *spaces, seed=0)
    save_agent(run.path("best"), agent, 0, world)


def stopped(run: Run) -> bool:
    """Whether the search was asked to stop."""
    return (run.directory / "stop").exists()
