"""What the server of processes has imported, and done once, since libraries remember it.

Nothing here may use threads, as gradients and parquet files do: they would be missing in forks.
"""

import importlib
import logging
import pkgutil
import runpy
import sys
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import accelerate  # noqa: F401
import peft  # noqa: F401
import torch
import transformers.trainer  # noqa: F401
from script_setups import GRID, build_weights

import lactchain
from fault_matrix.programs import PROGRAMS, SCRIPTS, Program
from lactchain.config import dump
from lactchain.environments.language import make_language_env
from lactchain.models.actor import LanguageActor
from lactchain.models.critic import EmbeddingCritic
from lactchain.provenance import provenance


def import_all() -> None:
    """Every module of the package, but for those of extras that are not installed."""
    for module in pkgutil.walk_packages(lactchain.__path__, "lactchain."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:
                continue


def parse(program: Program, config: Any, file: Path) -> None:
    """Has a program read its configuration, and print it, as its only work."""
    file.write_text(dump(config))
    sys.argv = [str(SCRIPTS / f"{program.script}.py"), "--config", str(file), "--print_config"]
    with suppress(SystemExit), redirect_stdout(StringIO()):
        runpy.run_path(sys.argv[0], run_name="__main__")
    logging.getLogger().handlers.clear()


@torch.no_grad()
def load_models(weights: Path) -> None:
    """Loads an actor and a critic; the actor answers once."""
    config = PROGRAMS["train_critic"].config(weights, weights)
    env = make_language_env(GRID)
    actor = LanguageActor.from_config(config.actor, env.grammar)
    actor.act([env.reset(seed=0)[0]], [0])
    EmbeddingCritic.from_config(config.critic, trainable=True)


import_all()
provenance()  # it asks git
with TemporaryDirectory() as place:
    weights = build_weights(Path(place) / "weights")
    for program in PROGRAMS.values():
        parse(program, program.config(weights, Path(place) / "run"), Path(place) / "config.yaml")
    load_models(weights)
