"""Tiny trainings of every kind, about a second each, for tests that interrupt and compare them.

`train_in_process` runs one in a process of its own, forked from a server that has torch and
transformers loaded already, so that killing it costs next to nothing.
"""

import functools
import gc
import hashlib
import itertools
import multiprocessing
import os
import random
import socket
import sys
from dataclasses import replace
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trajectories import trajectory
from transformers import TrainingArguments

from lactchain import ActorConfig, CriticConfig, LoraSettings, Run, SimPOConfig, TrainingConfig
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.loading import load_actor, load_tokenizer
from lactchain.models.prompting import PromptTemplate
from lactchain.models.tiny import TinyModelConfig, build_tiny_actor, build_tiny_encoder
from lactchain.runs import distributed
from lactchain.runs.process import launch, seed_everything
from lactchain.trainers.base import train, training_arguments
from lactchain.trainers.behavior_cloning import BehaviorCloningTrainer, cloning_rows
from lactchain.trainers.critic import CriticTrainer, EpisodeTable
from lactchain.trainers.simpo import SimPOTrainer, preference_rows
from lactchain.types import Action, PreferencePair, Trajectory
from lactchain_extras.token_values.model import ValueModel
from lactchain_extras.token_values.settings import ILQLConfig, ValueConfig
from lactchain_extras.token_values.token_view import TokenView, token_view
from lactchain_extras.token_values.trainers import ILQLTrainer, MonteCarloTrainer

SHAPE = TinyModelConfig(
    hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=32
)
STATES = [f"{x} {y} {o}" for x in range(4) for y in range(4) for o in ("up", "down", "left")]
MOVES = ("move forward", "turn left")
# 3 epochs of 19 rows: 5 batches of 4 an epoch, 2 accumulated, so 3 updates, the last one smaller.
TRAINING = TrainingConfig(
    num_epochs=3,
    batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    save_every_updates=2,
    extra={"logging_steps": 2},
)
NUM_ROWS, NUM_UPDATES = 19, 9
ILQL = ILQLConfig(gamma=0.9, tau=0.1, cql_weight=0.1)
MC = ValueConfig(gamma=0.9, cql_weight=0.1)
OFFLINE = {"ilql": (ILQLTrainer, 2, ILQL), "mc": (MonteCarloTrainer, 1, MC)}
LORA = LoraSettings(r=2)
DROPOUT = 0.2  # of attention under an adapter: it draws random numbers in every step


def slow(*kinds: str) -> list:
    """Kinds of training, for tests that are slow with them."""
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


def changed(extra: dict | None = None, **values) -> TrainingConfig:
    """The common settings with some replaced; no warm-up, constant learning rate."""
    constant = {"lr_scheduler_type": "constant", "warmup_steps": 0}
    return replace(TRAINING, extra=TRAINING.extra | constant | (extra or {}), **values)


def build_weights(folder: Path) -> Path:
    """Writes a tiny actor and encoder."""
    corpus = [*STATES, *(chain_of(k) for k in range(1, 4))] * 2
    build_tiny_actor(folder / "actor", corpus, SHAPE)
    build_tiny_encoder(folder / "encoder", folder / "actor")
    return folder


def with_dropout(model: torch.nn.Module, lora: bool) -> None:
    """Has a model under an adapter draw random numbers in every step."""
    for module in model.modules() if lora else ():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = DROPOUT


def nudge(model: torch.nn.Module, size: float, seed: int = 1) -> None:
    """Gives an adapter an update of that size."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, size)


def chain_of(length: int) -> str:
    """A chain of that many actions."""
    return "[" + ", ".join(f'"{MOVES[i % 2]}"' for i in range(length)) + "]"


def pairs() -> list[PreferencePair]:
    """Pairs in which the longer chain is better."""
    return [PreferencePair(STATES[i], chain_of(2 + i % 2), chain_of(1)) for i in range(NUM_ROWS)]


def episodes(terminated: bool = True, num_rows: int | None = None) -> list[Trajectory]:
    """Episodes of one to three chains, whose reward is the first number of the state."""
    states = itertools.cycle(random.Random(0).sample(STATES, len(STATES)))
    found, rows, num_rows = [], 0, num_rows or NUM_ROWS
    while rows < num_rows:
        steps = min(1 + len(found) % 3, num_rows - rows)
        visited = tuple(itertools.islice(states, steps + 1))
        rewards = tuple(float(state[0]) for state in visited[:-1])
        infos = tuple({"rewards": [r], "executed": [MOVES[0]]} for r in rewards)
        said, ending = [chain_of(1)] * steps, {"terminated": terminated, "seed": len(found)}
        found.append(trajectory(visited, said, rewards, ({}, *infos), **ending))
        rows += steps
    return found


def arguments(settings: TrainingConfig, run: Run) -> TrainingArguments:
    """The arguments of a training whose checkpoints are the run's."""
    return training_arguments(settings, run.path("checkpoints"), 0)


def actor_config(weights: Path, lora: bool, dtype: str) -> ActorConfig:
    """The tiny actor, all its weights or an adapter of it."""
    return ActorConfig(str(weights / "actor"), lora=LORA if lora else None, dtype=dtype)


def trained_actor(weights: Path, lora: bool, dtype: str):
    """A model to train and its tokenizer, after the seed is set."""
    seed_everything(0, threads=1)
    model, tokenizer = load_actor(actor_config(weights, lora, dtype), trainable=True)
    with_dropout(model, lora)
    return model, tokenizer


def make_simpo(weights: Path, run: Run, *, lora: bool, dtype="auto", settings=TRAINING, **options):
    """SimPO on 19 pairs."""
    model, tokenizer = trained_actor(weights, lora, dtype)
    rows, _ = preference_rows(pairs(), PromptTemplate(tokenizer), tokenizer)
    simpo = SimPOConfig(nll_weight=0.1)
    return SimPOTrainer(model, arguments(settings, run), rows, tokenizer, simpo, run=run, **options)


def make_critic(
    weights: Path, run: Run, *, lora, dtype="auto", settings=TRAINING, terminated=False, **options
):
    """A critic on 19 decisions; as a default the episodes are cut, and end with its values."""
    seed_everything(0, threads=1)
    lora_settings = LORA if lora else None
    config = CriticConfig(str(weights / "encoder"), lora=lora_settings, gamma=0.9, dtype=dtype)
    critic = EmbeddingCritic.from_config(config, trainable=True)
    with_dropout(critic, lora)
    table = EpisodeTable(episodes(terminated), critic)
    return CriticTrainer(critic, arguments(settings, run), table, run=run, **options)


def make_cloning(weights: Path, run: Run, *, lora, dtype="auto", settings=TRAINING, **options):
    """Behaviour cloning on 19 examples."""
    model, tokenizer = trained_actor(weights, lora, dtype)
    examples = [(STATES[i], Action(chain_of(1 + i % 3))) for i in range(NUM_ROWS)]
    rows, _ = cloning_rows(examples, PromptTemplate(tokenizer), tokenizer)
    args = arguments(settings, run)
    return BehaviorCloningTrainer(model, args, rows, tokenizer, run=run, **options)


def value_episodes() -> list[Trajectory]:
    """Episodes of two decisions over 19 different states, every other one cut."""
    found = []
    for start in range(0, NUM_ROWS, 2):
        visited = STATES[start : min(start + 2, NUM_ROWS)]
        places, ending = range(len(visited)), {"terminated": start % 4 == 0, "seed": start}
        said = [chain_of(1 + (start + i) % 3) for i in places]
        rewards = [-1.0 - i for i in places]
        found.append(trajectory((*visited, STATES[start // 2]), said, rewards, **ending))
    return found


def value_data(weights: Path, lora: bool, dtype: str = "auto") -> tuple[ActorConfig, TokenView]:
    """The actor that value models begin with, and the token view of 19 decisions."""
    tokenizer = load_tokenizer(weights / "actor", padding_side="left", chat=True)
    view = token_view(value_episodes(), PromptTemplate(tokenizer), tokenizer)
    return actor_config(weights, lora, dtype), view


def make_values(
    method: str, weights: Path, run: Run, *, lora, dtype="auto", settings=TRAINING, **options
):
    """Values of the tokens of 19 decisions, by ILQL or Monte Carlo; `ilql` or `mc` says how."""
    seed_everything(0, threads=1)
    trainer_class, heads, values = OFFLINE[method]
    values = options.pop(method, values)
    config, view = value_data(weights, lora, dtype)
    told = {"method": method, "gamma": values.gamma, "num_q_heads": heads, "start": -1.0}
    model = ValueModel.from_actor(config, **told)
    with_dropout(model, lora)
    return trainer_class(model, arguments(settings, run), view, values, run=run, **options)


MAKERS = {"simpo": make_simpo, "critic": make_critic, "cloning": make_cloning}
MAKERS |= {method: functools.partial(make_values, method) for method in OFFLINE}


def open_run(run_dir: Path) -> Run:
    """The run folder of a test."""
    return Run.open(run_dir, TRAINING)


def final_state(run_dir: Path, step: int = NUM_UPDATES) -> dict[str, str]:
    """Hashes of everything in a last checkpoint that must not depend on interruptions.

    Parameters, optimiser, schedule, random states and targets; not the log or the manifest.
    """
    folder = run_dir / "checkpoints" / f"checkpoint-{step}"
    hashes = {}
    [optimizer] = folder.glob("optimizer.*")
    for path in [optimizer, *folder.glob("rng_state*"), folder / "scheduler.pt"]:
        # Our own files of a minute ago; the state of numpy is not among the types that are safe.
        _hash_leaves(torch.load(path, weights_only=False), path.name, hashes)
    for path in folder.glob("*.safetensors"):
        _hash_leaves(load_file(path), path.name, hashes)
    return hashes


def _hash_leaves(value, name: str, hashes: dict[str, str]) -> None:
    if isinstance(value, dict | list | tuple):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            _hash_leaves(entry, f"{name}.{key}", hashes)
    else:
        is_array = isinstance(value, torch.Tensor | np.ndarray)
        content = np.asarray(value).tobytes() if is_array else repr(value).encode()
        hashes[name] = hashlib.sha256(content).hexdigest()[:12]


def spoil_loss(trainer, update: int, factor: float = float("nan")) -> None:
    """Multiplies the loss of the second of the two micro-batches of an update."""
    compute_loss = trainer.compute_loss
    calls = {"count": 0}

    def spoiled(*args, **kwargs):
        loss = compute_loss(*args, **kwargs)
        calls["count"] += 1
        return loss * factor if calls["count"] == 2 * update else loss

    trainer.compute_loss = spoiled


def train_here(
    kind: str, weights: Path, run_dir: Path, options: dict, spoiled_rank: int | None = None
) -> None:
    """Trains to the end, or goes on from where the folder stands."""
    with open_run(run_dir) as run:
        trainer = MAKERS[kind](weights, run, **options)
        if spoiled_rank == distributed.rank():
            spoil_loss(trainer, update=3)
        train(trainer)


def begin(variables: dict[str, str], log: str, *arguments: str) -> None:
    """What a process of the tests does first."""
    os.environ.update(variables)
    sys.stdout = sys.stderr = open(log, "a")  # noqa: SIM115
    for number in (1, 2):
        os.dup2(sys.stdout.fileno(), number)
    torch.set_num_threads(1)
    gc.freeze()  # as in conftest.py: what the server has imported stays
    sys.argv = [*arguments]


def _main(variables: dict[str, str], log: str, *args) -> None:
    begin(variables, log, "training")
    launch(lambda _: train_here(*args), TrainingConfig)


@functools.cache
def _preloaded() -> BaseContext:
    """Starts processes in milliseconds, from a server that has imported this module."""
    # The server reads sys.path only after it has preloaded (Python 3.11 to 3.13).
    folder = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def train_in_process(kind: str, weights: Path, run_dir: Path, *args, **variables: str):
    """A process that runs `train_here`, started; `variables` go into its environment."""
    log = f"{run_dir}-{variables.get('RANK', 0)}.log"
    main_args = (variables, log, kind, weights, run_dir, *args)
    process = _preloaded().Process(target=_main, args=main_args)
    process.start()
    return process


def train_on_two(kind: str, weights: Path, run_dir: Path, *args) -> list:
    """Two such processes that work together (gloo), started."""
    group = new_group()
    variables = [{"RANK": rank, "LOCAL_RANK": rank, **group} for rank in "01"]
    return [train_in_process(kind, weights, run_dir, *args, **own) for own in variables]


def new_group() -> dict[str, str]:
    """What tells two processes of each other, but for their ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def logs(run_dir: Path) -> str:
    """What the processes of a training printed."""
    files = sorted(run_dir.parent.glob(f"{run_dir.name}-*.log"))
    return "\n".join(file.read_text() for file in files)


def exit_codes(processes: list) -> list[int]:
    """Waits for processes to end."""
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]
