"""What a pipeline says at its end: its figures, and three commands to go on with."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lactchain.config.parsing import differences, to_dict
from lactchain.config.settings import EnvironmentConfig, PlayerConfig, recast
from lactchain.environments.language import make_language_env
from lactchain.environments.registry import modules_of
from lactchain.runs.console import console, figures, plain
from lactchain.stages.sizing import with_values
from lactchain.storage.files import read_json

if TYPE_CHECKING:
    from lactchain.stages.run_pipeline import RunPipelineConfig


def show_result(config: RunPipelineConfig, summary: dict[str, Any]) -> None:
    """Prints the figures of a pipeline, and what to do next."""
    number = summary["round"]
    verdict = f"round {number} is the best one, no round has met the target"
    if summary["target_met"]:
        verdict = f"round {number} has met the target"
    figures(f"{config.run.run_dir}: {verdict}", summary)
    for purpose, line in next_commands(config).items():
        console.print(plain(f"{purpose}:\n  {line}"), soft_wrap=True)


def next_commands(config: RunPipelineConfig) -> dict[str, str]:
    """Commands for a finished pipeline, each by what it is for."""
    run_dir = config.run.run_dir
    sizes = Path(run_dir) / "sizes.json"
    if sizes.is_file():
        config = with_values(config, read_json(sizes)["settings"])
    modules = modules_of(config.environment.id)
    imports = {"import": ",".join(modules)} if modules else {}
    another = f"{run_dir.rstrip('/')}_seed_{config.run.seed + 1}"
    return {
        "See what it has learnt": f"python -m webbrowser {shlex.quote(f'{run_dir}/report.html')}",
        "Watch it play": command("play", imports | _watching(config)),
        "The same with another seed": command(
            "run_pipeline",
            imports
            | {
                "config": f"{run_dir}/config.yaml",
                "run.run_dir": another,
                "run.seed": config.run.seed + 1,
            },
        ),
    }


def command(script: str, options: Mapping[str, Any]) -> str:
    """The line that starts a script, in the way in which this process was started."""
    began = Path(sys.argv[0])
    start = ["lactchain", script]
    if began.suffix == ".py":
        start = ["python", str(began.with_name(f"{script}.py"))]
    words = [word for key, value in options.items() for word in (f"--{key}", _typed(value))]
    return shlex.join([*start, *words])


def _watching(config: RunPipelineConfig) -> dict[str, Any]:
    """The options of a game that the trained actor plays, in the world that it knows."""
    asked = differences(to_dict(PlayerConfig()), to_dict(recast(config.actor, PlayerConfig)))
    world = differences(to_dict(EnvironmentConfig()), to_dict(config.environment))
    options = {"actor.model": config.run.run_dir, "actor.temperature": 0}
    if "strategy" in asked:
        options["actor.strategy"] = config.actor.strategy
    options |= {f"environment.{key}": value for key, (_, value) in world.items()}
    if "ansi" in make_language_env(config.environment).env.metadata["render_modes"]:
        options["environment.kwargs.render_mode"] = "ansi"
    return options


def _typed(value: Any) -> str:
    """A value as it is typed."""
    return value if isinstance(value, str) else json.dumps(value)
