"""A search as a run folder, which the same command continues wherever it was killed.

    RUN/lineage.jsonl   evolution: a line for each member of each generation
    RUN/trials.jsonl    trials: a line for each evaluation
    RUN/best/           the member that the search returns, as it was when it was evaluated
    RUN/checkpoints/    evolution: everything that the next generation depends on
    RUN/stop            a file of this name, made by anybody, ends the search in good order

A generation, or a trial, that was cut is done again, and comes out the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lactchain import distributed
from lactchain.baselines.member_envs import spaces_of
from lactchain.baselines.settings import WorldConfig
from lactchain.baselines.state_files import load_checkpoint, save_checkpoint
from lactchain.baselines.training import load_agent, save_agent
from lactchain.errors import ConfigError
from lactchain.files import append_json_lines, read_json_lines, write_json_lines
from lactchain.genes import gene_values
from lactchain.process import seed_everything
from lactchain.run import Run
from lactchain.search.agents import AgentSpecies, agent_class
from lactchain.search.evolution import Evolution, Generation, Individual, credit
from lactchain.search.language import LanguageSpecies
from lactchain.search.members import Learnt, join
from lactchain.search.mutations import check_genes
from lactchain.search.settings import SearchConfig
from lactchain.search.trials import trials_of

KEEP_CHECKPOINTS = 2


def search(config: SearchConfig, stages: Mapping[str, Callable[[Any], dict]]) -> dict[str, Any]:
    """Runs what a config asks for, or continues it; returns the summary.

    Args:
        config: what is searched, and how.
        stages: `train` and `evaluate` of language actors, from their configs to their summaries;
            they are not called for classic agents.

    Raises:
        ConfigError: a gene is unknown or out of its bounds, the folder is another run's, or there
            are several processes.
        Interrupted: a signal asked the process to stop; what is whole is saved.
    """
    if (count := distributed.world_size()) > 1:
        raise ConfigError(
            f"search: expected a single process, got {count}; start it without a launcher, "
            "members are trained one after the other"
        )
    with Run.of(config) as run:
        if run.finished:
            return run.summary
        seed_everything(config.run.seed, config.run.threads)
        check_genes(config.subject, config.space.genes)
        work = evolve if config.method == "evolution" else try_out
        summary = work(config, run, stages)
        run.finish(summary)
        return summary


def evolve(
    config: SearchConfig, run: Run, stages: Mapping[str, Callable[[Any], dict]]
) -> dict[str, Any]:
    """Generations until the target is met, or the last one is done."""
    seed, settings = config.run.seed, config.evolution
    if config.language is not None:
        species = LanguageSpecies(config.language, config.space, settings, run, stages)
    else:
        species = AgentSpecies(config.subject, config.environment, config.space, settings, seed)
    evolution = Evolution(species, settings, seed, config.target)
    resume(run, evolution)
    while not evolution.done:
        record(run, evolution.advance())
        if config.language is None:
            save_best(run, config.environment, evolution.champion.config, evolution.champion.state)
        save(run, evolution)  # last: what is done again writes the rest again
        if stopped(run):
            break
    champion, lineage = evolution.champion, read_json_lines(run.directory / "lineage.jsonl")
    outcome = species.certify(champion)
    species.close()
    return {
        "method": "evolution",
        "seed": seed,
        "num_generations": evolution.number,
        "num_env_steps": species.num_env_steps,
        "target_met": None if config.target is None else evolution.certified is not None,
        "best/fitness": champion.fitness,
        "best/episode_return": outcome,
        "best/genes": gene_values(champion.config),
        "best/ancestors": ancestors(champion, lineage),
        "credit": credit(lineage),
    } | species.facts(champion)


def record(run: Run, generation: Generation) -> None:
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
    """Goes on after the last whole generation, and forgets what was noted of a later one."""
    state = load_checkpoint(run.path("checkpoints"))
    if state is not None:
        evolution.load_state_dict(state)
    path = run.path("lineage.jsonl")
    kept = [line for line in read_json_lines(path) if line["generation"] < evolution.number]
    write_json_lines(path, kept)
    run.truncate_metrics(evolution.species.num_env_steps if evolution.number else -1)


def try_out(
    config: SearchConfig, run: Run, _: Mapping[str, Callable[[Any], dict]]
) -> dict[str, Any]:
    """Trials until the target is met, or the last one is done."""
    seed, path = config.run.seed, run.path("trials.jsonl")
    trials = trials_of(
        config.method, config.subject, config.environment, config.space, config.trials, seed
    )
    lines = whole_trials(read_json_lines(path))
    write_json_lines(path, lines)
    trials.replay(lines)
    run.truncate_metrics(trials.arena.num_env_steps if lines else -1)
    best = max(lines, key=lambda line: line["fitness"], default=None)
    met = best is not None and best["certified"]
    for report in trials if not met else ():
        met = config.target is not None and trials.certify(report, config.target)
        line = {**report.record(), "certified": met}
        if best is None or met or report.fitness > best["fitness"]:
            best = line
            save_best(run, config.environment, report.config, report.learnt)
        append_json_lines(path, [line])
        metrics = {"search/best_fitness": best["fitness"], "search/fitness": report.fitness}
        run.log(metrics, step=report.num_env_steps)
        if met or stopped(run):
            break
    return {
        "method": config.method,
        "seed": seed,
        "num_trials": trials.number,
        "num_env_steps": trials.arena.num_env_steps,
        "target_met": None if config.target is None else met,
        "best/fitness": best["fitness"],
        "best/episode_return": trials.arena.prove(load_agent(run.directory / "best")),
        "best/genes": best["genes"],
        "best/trial": best["trial"],
    }


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
    """Whether somebody asked for an orderly end."""
    return (run.directory / "stop").exists()
