r"""The 7B path at its true shape: every script once, with random weights and small counts.

Makes the random Mistral-7B actor and SFR-Embedding-Mistral encoder in a scratch folder (27 GB on
disk at 32 layers), runs each stage as a process of its own with its shipped
`gridworld_mistral7b.yaml`, and prints what it took beside the formulas of `--dry_run`.
Memory is what the system says of the process, sampled: private, and mapped from files, which may
leave the memory; on a GPU also what torch had allocated there. Of the configurations only counts
and the world's size change, and the dtype that `auto` chooses on a GPU. Leaves nothing behind.

    python benchmarks/full_size.py --device cpu               # half an hour on two cores, 24 GiB
    python benchmarks/full_size.py --device cuda
    python benchmarks/full_size.py --layers 2 --width 64      # a smoke test in a minute or two
    python benchmarks/full_size.py --one_base --only collect_rollouts train_critic make_preferences
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import typing
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from measuring import ROOT, command_line, words
from random_models import ACTOR, ENCODER, build_actor, build_encoder

from lactchain.config.parsing import parse
from lactchain.runs.console import table
from lactchain.stages.stage_run import BatchSettings
from lactchain_extras.memory import memory_of

SAMPLE_SECONDS = 0.1

WORLD = {
    "environment.kwargs": {"width": 2, "height": 1, "goal": [1, 0]},  # four start states
    "environment.max_chains": 1,
}
UPDATES = {
    "training.max_steps": 2,
    "training.batch_size": 1,
    "training.gradient_accumulation_steps": 1,
    # Without a warm-up, since a critic's head learns first, and then its adapter.
    "training.extra": {"warmup_steps": 0, "logging_steps": 1},
    "training.save_every_updates": 0,
}
EPISODES = {"collect.num_episodes": 2, "collect.num_envs": 2, "collect.shard_size": 2}
ANSWER = "actor.max_new_tokens"
LEARNING = BatchSettings("training.batch_size", ANSWER)
PLAYED = {"trajectories": "runs/collect_rollouts_mistral7b/trajectories"}


@dataclass(frozen=True)
class Stage:
    """A script with its shipped configuration.

    Attributes:
        script: its stem.
        settings: what is changed.
        batch: what its memory is estimated by.
        dtypes: fields that `auto` would set to bfloat16 on a GPU.
    """

    script: str
    settings: Mapping[str, Any]
    batch: BatchSettings | None
    dtypes: tuple[str, ...] = ("actor.dtype",)


STAGES = (
    Stage("collect_rollouts", WORLD | EPISODES, BatchSettings("collect.num_envs", ANSWER)),
    Stage(
        "train_critic",
        WORLD | UPDATES | PLAYED | {"compare_with_exact": False},
        BatchSettings("training.batch_size", "critic.max_length"),
        ("actor.dtype", "critic.dtype"),
    ),
    Stage(
        "make_preferences",
        # Random weights answer freely with noise, of which no completion is better than another.
        WORLD
        | {
            "actor.decoding": "constrained",
            "preferences.num_states": 2,
            "preferences.num_candidates": 3,
            "preferences.states_per_shard": 2,
            "preferences.min_margin": 0,
        },
        BatchSettings("preferences.states_per_shard", ANSWER),
    ),
    Stage(
        "train_simpo",
        WORLD | UPDATES | {"pairs": "runs/make_preferences_mistral7b/pairs"},
        LEARNING._replace(texts=2),
    ),
    Stage("train_bc", WORLD | UPDATES | {"behavior.num_chains": 2}, LEARNING),
    Stage("train_mc", WORLD | UPDATES, LEARNING._replace(heads=1)),
    Stage("train_ilql", WORLD | UPDATES, LEARNING._replace(heads=2)),
    Stage(
        "evaluate",
        WORLD | {"evaluation.num_samples": 3, "evaluation.num_envs": 4},
        BatchSettings("evaluation.num_envs", ANSWER),
    ),
    Stage("export", {}, None, ()),
)


@dataclass
class Taken:
    """What a process took: greatest figures, in bytes and seconds."""

    seconds: float = 0.0
    private: int = 0
    mapped: int = 0
    both: int = 0
    on_device: int = 0
    errors: str = ""

    def watch(self, process: subprocess.Popen) -> int:
        """Samples a process until it ends; its exit code."""
        while (code := process.poll()) is None:
            with suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                sizes = re.findall(r"^Rss(\w+):\s+(\d+) kB", status, re.MULTILINE)
                self._note(**{name: int(size) * 1024 for name, size in sizes})
            time.sleep(SAMPLE_SECONDS)
        return code

    def _note(self, Anon: int = 0, File: int = 0, Shmem: int = 0) -> None:  # noqa: N803
        self.private, self.mapped = max(self.private, Anon), max(self.mapped, File + Shmem)
        self.both = max(self.both, Anon + File + Shmem)


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # As `accelerate launch` with a configuration for bfloat16 tells its only process.
    os.environ |= {"ACCELERATE_MIXED_PRECISION": "bf16", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="full-size-") as scratch:
        os.chdir(scratch)
        try:
            build(arguments.width, arguments.layers)
            stages = [s for s in STAGES if arguments.only is None or s.script in arguments.only]
            rows = []
            for stage in stages:
                if arguments.one_base and stage.script == "train_critic":
                    stage = replace(stage, settings=stage.settings | {"critic.model": ACTOR})
                rows.append(run_stage(stage, arguments.device))
                print(", ".join(f"{k} {v}" for k, v in rows[-1].items() if v), flush=True)
            table("Memory at its greatest, GiB, and time", rows)
        finally:
            os.chdir(ROOT)


def build(width: int, layers: int) -> None:
    """Writes both models where the shipped configurations look for them."""
    size = {"hidden_size": width, "num_layers": layers}
    build_actor(f"weights/{ACTOR}", **size)
    build_encoder(f"weights/{ENCODER}", **size)


def run_stage(stage: Stage, device: str) -> dict[str, Any]:
    """Runs a stage in a process of its own; its row of the table."""
    told = _words(stage, device)
    main = importlib.import_module(f"lactchain.stages.{stage.script}").main
    config = parse(typing.get_type_hints(main)["config"], told)
    taken = _run([f"{ROOT}/scripts/{stage.script}.py", *told])
    if taken.errors:
        sys.exit(f"{stage.script}: {taken.errors}")
    sizes = {"private": taken.private, "mapped": taken.mapped, "both": taken.both}
    if device == "cuda":
        sizes["on GPU"] = taken.on_device
    formula = memory_of(config, stage.batch).values() if stage.batch is not None else ()
    row = {"stage": stage.script} | {name: _gib(size) for name, size in sizes.items()}
    by_formula = _gib(sum(formula)) if formula else ""
    return row | {"seconds": f"{taken.seconds:.0f}", "by formula": by_formula}


def _words(stage: Stage, device: str) -> list[str]:
    """The command line behind the script's name."""
    dtypes = dict.fromkeys(stage.dtypes, "bfloat16") if device == "cpu" else {}
    config = f"{ROOT}/configs/{stage.script}/gridworld_mistral7b.yaml"
    return ["--config", config, *words(stage.settings | dtypes)]


def _run(words: Sequence[str]) -> Taken:
    """Runs a script under `measured`, and watches it."""
    taken, start = Taken(), time.perf_counter()
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, __file__, "--measured", *words]
    with open("log.txt", "w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            code = taken.watch(process)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        taken.errors = log.read()[-2000:] if code else ""
    taken.seconds = time.perf_counter() - start
    if not code:
        taken.on_device = int(Path("peak.txt").read_text())
    return taken


def measured(words: Sequence[str]) -> None:
    """Runs a script as from the command line, and writes what torch allocated on the GPU."""
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    Path("peak.txt").write_text(str(peak))


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


def _arguments() -> Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--only", nargs="+", choices=[s.script for s in STAGES])
    parser.add_argument("--one_base", action="store_true", help="the critic is on the actor's base")
    parser.add_argument("--scratch", help="where the scratch folder is made; default: $TMPDIR")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measured"]:
        measured(sys.argv[2:])
    else:
        main()
