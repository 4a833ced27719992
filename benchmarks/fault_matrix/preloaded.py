"""What the server of processes has imported, and done once, since libraries remember it.

Nothing here may use threads, as gradients and parquet files do: they would be missing in forks.
"""

import importlib
import logging
import pkgutil
import runpy
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import accelerate  # noqa: F401
import peft  # noqa: F401
import torch
import transformers.trainer  # noqa: F401
from script_setups import GRID, build_weights

import lactchain
from fault_matrix.processes import SCRIPTS
from fault_matrix.programs import PROGRAMS
from lactchain.config.parsing import dump
from lactchain.environments.language import make_language_env
from lactchain.models.actor import LanguageActor
from lactchain.models.critic import EmbeddingCritic
from lactchain.runs.process import provenance

torch.set_num_threads(1)
for module in pkgutil.walk_packages(lactchain.__path__, "lactchain."):
    if not module.name.endswith("__main__"):
        with suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(module.name)
provenance()  # it asks git
with TemporaryDirectory() as place, torch.no_grad():
    weights, file = build_weights(Path(place) / "weights"), Path(place) / "config.yaml"
    for program in (replace(program, shared=weights) for program in PROGRAMS.values()):
        file.write_text(dump(program.config(weights / "run")))
        sys.argv = [str(SCRIPTS / f"{program.script}.py"), f"--config={file}", "--print_config"]
        with suppress(SystemExit), redirect_stdout(StringIO()):
            runpy.run_path(sys.argv[0], run_name="__main__")
        logging.getLogger().handlers.clear()
    config = replace(PROGRAMS["train_critic"], shared=weights).config(weights)
    env = make_language_env(GRID)
    actor = LanguageActor.from_config(config.actor, env.grammar)
    actor.act([env.reset(seed=0)[0]], [0])
    EmbeddingCritic.from_config(config.critic, trainable=True)
