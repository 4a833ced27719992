r"""The 7B path at its true shape: every script once, with random weights and small counts.

Makes the random Mistral-7B actor and SFR-Embedding-Mistral encoder in a scratch folder (27 GB on
disk at 32 layers), runs each stage as a process of its own with its shipped
`gridworld_mistral7b.yaml`, and prints what it took beside the formulas of `--dry_run`.
Memory is what the system says of the process, sampled: private, and mapped from files, which may
leave the memory; on a GPU also what torch had allocated there. Of the configurations only counts
and the world's size change, and the dtype that `auto` chooses on a GPU. Leaves nothing behind.

On a GPU also: completions by the decoder against `generate` of transformers (eager, and with a
static cache, compiled), and the largest training batch that fits.

    python benchmarks/full_size.py --device cpu               # half an hour on two cores, 24 GiB
    python benchmarks/full_size.py --device cuda
    python benchmarks/full_size.py --layers 2 --width 64      # a smoke test in a minute or two
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from random_models import ACTOR, ENCODER, build_actor, build_encoder
from transformers import GenerationConfig, PreTrainedModel

from lactchain.config.parsing import parse
from lactchain.config.settings import ActorConfig, LoraSettings
from lactchain.data.trajectories import read_trajectories
from lactchain.environments.language import make_language_env
from lactchain.models.generation.decoding import Decoder
from lactchain.models.loading import load_actor
from lactchain.models.prompting import PromptTemplate
from lactchain.runs.console import table
from lactchain.stages import train_simpo
from lactchain.stages.running import BatchSettings
from lactchain.trainers.simpo import PreferenceCollator, completion_logprobs
from lactchain_extras.memory import memory_of

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_SECONDS = 0.1
NEW_TOKENS = 32
BATCHES = (16, 64, 256)

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
    _ended: threading.Event = field(default_factory=threading.Event)

    def watch(self, pid: int) -> None:
        """Samples a process until `stop` is called or it ends."""
        while not self._ended.wait(SAMPLE_SECONDS):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                return
            sizes = {
                line.split(":")[0]: int(line.split()[1]) * 1024
                for line in status.splitlines()
                if line.startswith("Rss")
            }
            if sizes:
                private, mapped = sizes["RssAnon"], sizes["RssFile"] + sizes["RssShmem"]
                self.private, self.mapped = max(self.private, private), max(self.mapped, mapped)
                self.both = max(self.both, private + mapped)

    def stop(self) -> None:
        """Ends `watch`."""
        self._ended.set()


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
                rows.append(run_stage(stage, arguments.device))
                memory, taken = rows[-1]
                print(", ".join(f"{k} {v}" for k, v in (memory | taken).items() if v), flush=True)
            table("Memory at its greatest, GiB", [memory for memory, _ in rows])
            table("Time", [time for _, time in rows])
            if arguments.device == "cuda" or arguments.engines:
                table("Completions", list(engines(arguments.rows)))
                table("Largest batch", [largest_batch(arguments.most_rows)])
        finally:
            os.chdir(ROOT)


def build(width: int, layers: int) -> None:
    """Writes both models where the shipped configurations look for them."""
    start = time.perf_counter()
    size = {"hidden_size": width, "num_layers": layers}
    build_actor(f"weights/{ACTOR}", **size)
    build_encoder(f"weights/{ENCODER}", **size)
    print(f"made {_gib(_size(Path('weights')))} GiB in {time.perf_counter() - start:.0f} s")


def run_stage(stage: Stage, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs a stage in a process of its own; its rows in the tables of memory and of time."""
    words = list(_words(stage, device))
    config = _config(stage, words)
    taken = _run([f"{ROOT}/scripts/{stage.script}.py", *words])
    if taken.errors:
        sys.exit(f"{stage.script}: {taken.errors}")
    memory = {
        "stage": stage.script,
        "private": _gib(taken.private),
        "mapped": _gib(taken.mapped),
        "both": _gib(taken.both),
    }
    if device == "cuda":
        memory["on GPU"] = _gib(taken.on_device)
    sizes = memory_of(config, stage.batch) if stage.batch is not None else {}
    memory["by formula"] = _gib(sum(sizes.values())) if sizes else ""
    run_dir = Path(config.run.run_dir)
    return memory, {
        "stage": stage.script,
        "seconds": f"{taken.seconds:.0f}",
        "tokens/s": _tokens_per_second(config),
        "GB written": f"{_size(run_dir) / 1e9:.3f}",
    }


def _words(stage: Stage, device: str) -> Iterator[str]:
    """The command line behind the script's name."""
    yield from ("--config", f"{ROOT}/configs/{stage.script}/gridworld_mistral7b.yaml")
    dtypes = dict.fromkeys(stage.dtypes, "bfloat16") if device == "cpu" else {}
    for name, value in (stage.settings | dtypes).items():
        yield from (f"--{name}", value if isinstance(value, str) else json.dumps(value))


def _config(stage: Stage, words: Sequence[str]) -> Any:
    main = runpy.run_path(f"{ROOT}/scripts/{stage.script}.py")["main"]
    return parse(typing.get_type_hints(main)["config"], list(words))


def _run(words: Sequence[str]) -> Taken:
    """Runs a script under `measured`, and watches it."""
    taken, start = Taken(), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, "--measured", *words]
    with open("log.txt", "w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        watcher = threading.Thread(target=taken.watch, args=(process.pid,))
        watcher.start()
        try:
            code = process.wait()
        finally:
            process.kill()
            taken.stop()
            watcher.join()
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


def _tokens_per_second(config: Any) -> str:
    """New tokens of completions that were played."""
    run_dir = Path(config.run.run_dir)
    if (run_dir / "trajectories").is_dir():
        summary = json.loads((run_dir / "summary.json").read_text())
        episodes = read_trajectories(run_dir / "trajectories")
        tokens = sum(len(action.token_ids) for t in episodes for action in t.actions)
        return f"{tokens / summary['time/generate_seconds']:.2f}"
    return ""


# --- on a GPU ------------------------------------------------------------------------------------


def engines(batches: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Tokens per second of free completions of equal length, by the decoder and by `generate`."""
    model, tokenizer = load_actor(ActorConfig(f"weights/{ACTOR}", dtype="bfloat16"))
    env = make_language_env(train_simpo.TrainSimPOConfig().environment)
    template = PromptTemplate.for_grammar(tokenizer, "founding", env.grammar)
    texts = [env.reset(seed=seed)[0] for seed in range(max(batches))]
    prompts = template.encode_batch(texts)
    decoder = Decoder(model, -1, template.prefix_ids, NEW_TOKENS)
    pad = tokenizer.pad_token_id
    methods = {
        "decoder": lambda rows: decoder.sample(rows, range(len(rows))),
        "generate, eager": lambda rows: _generate(model, rows, pad),
        "generate, static cache, compiled": lambda rows: _generate(
            model, rows, pad, cache_implementation="static"
        ),
    }
    for count in batches:
        for name, method in methods.items():
            yield {"rows": count, "engine": name} | _timed(method, prompts[:count])


def _timed(method: Callable[[list], object], prompts: list[list[int]]) -> dict[str, Any]:
    """Tokens per second of the second call: the first one compiles."""
    on_cuda = torch.cuda.is_available()
    try:
        method(prompts)
        if on_cuda:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        start = time.perf_counter()
        method(prompts)
        if on_cuda:
            torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"tokens/s": "out of memory", "GiB": ""}
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if on_cuda else 0
    return {"tokens/s": f"{len(prompts) * NEW_TOKENS / seconds:.1f}", "GiB": _gib(peak)}


@torch.inference_mode()
def _generate(
    model: PreTrainedModel, prompts: list[list[int]], pad: int, **settings: Any
) -> torch.Tensor:
    """Samples as many new tokens in every row, padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    config = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=True,
        top_k=0,
        pad_token_id=pad,
        disable_compile=not torch.cuda.is_available(),
        **settings,
    )
    return model.generate(ids, config, attention_mask=mask.to(model.device))


def largest_batch(most: int) -> dict[str, Any]:
    """The most pairs that one step of SimPO takes without checkpointing, by bisection."""
    config = ActorConfig(f"weights/{ACTOR}", dtype="bfloat16", lora=LoraSettings())
    model, _ = load_actor(config, trainable=True)
    row = {"prompt_ids": [5] * 110, "chosen_ids": [6] * 40, "rejected_ids": [7] * 40}

    def fits(rows: int) -> bool:
        if rows > most:
            return False
        try:
            batch = PreferenceCollator(0)([row] * rows)
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            with torch.autocast(model.device.type, dtype=torch.bfloat16):
                logprobs, _ = completion_logprobs(
                    model, **batch, config=model.config, dtype=model.dtype
                )
            logprobs.mean().backward()
        except torch.OutOfMemoryError:
            return False
        finally:
            model.zero_grad()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return True

    lower, upper = 0, 1
    while fits(upper):
        lower, upper = upper, 2 * upper
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (middle, upper) if fits(middle) else (lower, middle)
    return {"stage": "SimPO, no checkpointing, 191 tokens a pair", "rows": lower}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--only", nargs="+", choices=[s.script for s in STAGES])
    parser.add_argument("--scratch", help="where the scratch folder is made; default: $TMPDIR")
    parser.add_argument("--engines", action="store_true", help="on a CPU too: a rehearsal")
    parser.add_argument("--rows", type=int, nargs="+", default=BATCHES, help="of the engines")
    parser.add_argument("--most_rows", type=int, default=1024, help="of the largest batch")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measured"]:
        measured(sys.argv[2:])
    else:
        main()
