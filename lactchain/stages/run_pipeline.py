"""The whole founding recipe: warm start, then rounds of critic and SimPO, until the target is met.

Reads the base models, or builds tiny ones; writes RUN/warm_start/ and RUN/round_N/*, run folders as
their own scripts make them, RUN/actor and RUN/critic of the round that is the result,
RUN/summary.json, RUN/report.html and, where the world draws itself, RUN/episode.gif. What each
round answers is in RUN/round_N/inspection. Killed, it goes on where it was. Settings that are null
follow from the world, by the rules of `lactchain.stages.sizing`; RUN/sizes.json holds them.

Departures from the founding text: (1) the recipe is repeated until a target is met, since one round
seldom finishes a world; (2) a warm start stands in for a base model's knowledge.
"""

import json
import logging
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lactchain import plugins
from lactchain.config.parsing import differences, to_dict, with_values
from lactchain.config.settings import EnvironmentConfig, PlayerConfig
from lactchain.data import alarms
from lactchain.environments.language import make_language_env
from lactchain.environments.registry import modules_of
from lactchain.errors import CollapseError
from lactchain.runs import distributed
from lactchain.runs.console import console, figures, plain, under_way
from lactchain.runs.process import is_dry_run, on_processes
from lactchain.runs.run import Run
from lactchain.stages import stage_run
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.rounds import Rounds
from lactchain.stages.sizing import RULES, fill, is_null
from lactchain.stages.stage_run import BatchSettings, dry_run, stage, write_page
from lactchain.stages.world_facts import measure_world
from lactchain.storage.files import read_json, to_json
from lactchain.storage.manifests import verify_if_described, write_with_manifest

log = logging.getLogger(__name__)

BATCHES = (
    BatchSettings("warm_start.training.batch_size", "actor.max_new_tokens"),
    BatchSettings("evaluation.num_envs", "actor.max_new_tokens"),
    BatchSettings("critic.collect.num_envs", "actor.max_new_tokens"),
    BatchSettings("critic.training.batch_size", "critic.config.max_length"),
    BatchSettings("simpo.preferences.states_per_shard", "actor.max_new_tokens"),
    BatchSettings("simpo.training.batch_size", "actor.max_new_tokens", texts=2),
)
"""Of the stages, by the pipeline's own settings."""


def main(config: RunPipelineConfig) -> dict[str, Any]:
    """Runs the rounds; returns the figures before and after."""
    if config.tiny is not None:  # the run says where the models that it builds are
        base = f"{config.run.run_dir}/base"
        own = {"actor.model": f"{base}/actor", "critic.config.model": f"{base}/encoder"}
        config = with_values(config, own)
    if is_dry_run():
        return dry_run(sized(config), BATCHES if config.tiny is None else ())
    try:
        with stage("", config, report=True, fills_nulls=True, closing=show_result) as run:
            if run.outcome is None:
                run.finish(recipe(config, run))
            if distributed.is_main() and (films := plugins.add_on("films")):
                films.film_run(Path(config.run.run_dir), run.outcome["round"])
    except BaseException:
        if distributed.is_main() and Path(config.run.run_dir, "report.html").is_file():
            write_page(config.run.run_dir, anew=False)  # it is not under way any more
        raise
    return run.outcome


def recipe(config: RunPipelineConfig, run: Run) -> dict[str, Any]:
    """The algorithm, from the warm start to the round in which the target is met."""
    with under_way("getting ready"):
        config = sized(config, run)
        rounds = Rounds(config, run)
    results = rounds.results
    if config.warm_start is not None:
        rounds.warm_start()
    else:
        rounds.require_chains()
    try:
        rounds.evaluate(0)
        if results.target_met_by() == 0 and not rounds.is_done(1):
            log.info("the target is met before any round: one tells whether more can be learnt")
        with under_way("round", config.num_rounds, most=True) as step:
            step.note = results.note()
            for number in range(1, config.num_rounds + 1):
                repeated = rounds.is_done(number)
                rounds.train_critic(number)
                if not rounds.train_actor(number):  # makes pairs, ranked by the critic; SimPO
                    break
                rounds.evaluate(number)
                step.note = results.note()
                if results.is_enough():
                    break
                results.check_collapse(rounds_left=config.num_rounds - number)
                (step.resumed if repeated else step.at)(number)
    except CollapseError:
        results.gather(alarms.best_round(results.evaluations))
        if distributed.is_main():
            write_page(run.directory)
        raise
    summary = results.summary()
    if run.path("actor").is_dir():  # else none was trained
        plugins.call("card", config, run, "actor", summary)
    return summary


def sized(config: RunPipelineConfig, run: Run | None = None) -> RunPipelineConfig:
    """The configuration with numbers that follow from the world in the place of nulls.

    A run keeps them, so that it goes on with the same ones. `ConfigError` where a null is left.
    """
    path = None if run is None else run.path("sizes.json")
    if any(is_null(config, key) for key in RULES):
        if path is not None and path.is_file():
            again = "remove it and give the same command to measure the world again"
            verify_if_described(path, again)
            config = with_values(config, read_json(path)["settings"])
        else:
            config = _measured(config, path)
    stage_run.require_numbers(config)
    return config


def _measured(config: RunPipelineConfig, path: Path | None) -> RunPipelineConfig:
    """The configuration with numbers by the world as it is measured now, kept in a file."""
    world = measure_world(config.environment, config.run.seed)
    config, chosen = fill(config, world, distributed.world_size())
    if path is not None:
        log.info("%s: %s", config.environment.id, world)
        for key, (value, why) in chosen.items():
            log.info("%s %s: %s", key, value, why)
        distributed.barrier()  # no process looks for a file that another one is about to write
        if distributed.is_main():
            settings = {key: value for key, (value, _) in chosen.items()}
            why = {key: reason for key, (_, reason) in chosen.items()}
            text = to_json({"world": asdict(world), "settings": settings, "why": why})
            write_with_manifest(path, text.encode(), {})
        distributed.barrier()
    return config


def show_result(config: RunPipelineConfig, summary: dict[str, Any]) -> None:
    """Prints the figures of a pipeline, and what to do next."""
    number = summary["round"]
    best = f"round {number}" if number else "the actor before any round"
    sizes = Path(config.run.run_dir) / "sizes.json"
    if sizes.is_file():
        config = with_values(config, read_json(sizes)["settings"])
    missed = "no round has met the target" if config.target else "there is no target to meet"
    seen = "" if config.selection is None else " by the start states for selection"
    verdict = f"{best} is the result{seen}, {missed}"
    if summary["target_met"]:
        verdict = f"{best} has met the target"
    actor = summary["actor"]["adapter"] or summary["actor"]["model"]
    figures(f"{config.run.run_dir}: {verdict}", summary | {"actor": actor})
    stage_run.show_place(config)
    for purpose, line in next_commands(config, summary["actor"]).items():
        console.print(plain(f"{purpose}:\n  {line}"), soft_wrap=True)


def next_commands(config: RunPipelineConfig, actor: Mapping[str, str | None]) -> dict[str, str]:
    """Commands for a finished pipeline, each by what it is for.

    The run keeps model and adapter of its result, `actor`, unless they were given to it.
    """
    run_dir = config.run.run_dir
    player = {"actor.model": run_dir}
    if not Path(run_dir, "actor").is_dir():
        player = {f"actor.{name}": given for name, given in actor.items() if given is not None}
    modules = modules_of(config.environment.id)
    imports = {"import": ",".join(modules)} if modules else {}
    seed = config.run.seed
    another = f"{run_dir.rstrip('/').removesuffix(f'_seed_{seed}')}_seed_{seed + 1}"
    again = {"config": f"{run_dir}/config.yaml", "run.run_dir": another, "run.seed": seed + 1}
    began = "quickstart" if Path(sys.argv[0]).name == "lactchain quickstart" else "run_pipeline"
    return {
        "See what it has learnt": f"python -m webbrowser {shlex.quote(f'{run_dir}/report.html')}",
        "Watch it play": command("play", imports | player | _watching(config)),
        "The same with another seed": command(began, imports | again, distributed.world_size()),
    }


def command(script: str, options: Mapping[str, Any], processes: int = 1) -> str:
    """The line that starts a script, in the way in which this process was started."""
    began = Path(sys.argv[0])
    start = ["lactchain", script]
    if began.suffix == ".py":
        start = ["python", str(began.with_name(f"{script}.py"))]
    typed = {key: v if isinstance(v, str) else json.dumps(v) for key, v in options.items()}
    words = [word for key, value in typed.items() for word in (f"--{key}", value)]
    return shlex.join(on_processes([*start, *words], processes))


def _watching(config: RunPipelineConfig) -> dict[str, Any]:
    """The options of a game that the trained actor plays, in the world that it knows."""
    world = differences(to_dict(EnvironmentConfig()), to_dict(config.environment))
    options: dict[str, Any] = {"actor.temperature": 0}
    if config.actor.strategy != PlayerConfig.strategy:
        options["actor.strategy"] = config.actor.strategy
    options |= {f"environment.{key}": value for key, (_, value) in world.items()}
    if "ansi" in make_language_env(config.environment).env.metadata["render_modes"]:
        options["environment.kwargs.render_mode"] = "ansi"
    return options
