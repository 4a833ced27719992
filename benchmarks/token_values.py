"""What a training step of token values costs, beside a plain language-model step on the same batch.

Both sides take the same decisions of a recorded data set. The plain side is `transformers.Trainer`
with the model's own loss on padded rows of prompt and completion, -100 on the prompt: what
behaviour cloning does. ILQL reads what the decisions share once, and besides the step itself pays
for heads, the text that followed each decision, and the target network. Printed are agent tokens
per CPU-second (`time.process_time`, one thread), and the overhead: CPU-seconds of an ILQL step over
those of a plain one, the median over the repeats, which run in turn.

- merged: equal decisions are one, weighted by their number (`group_by: prompt`);
- episodes: every decision is there (`group_by: episode`).

    OMP_NUM_THREADS=1 python benchmarks/token_values.py --config configs/train_ilql/maze_tiny.yaml
    OMP_NUM_THREADS=1 python benchmarks/token_values.py --config configs/train_ilql/wordle_tiny.yaml
"""

import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import command_line, in_turns, ratio
from transformers import Trainer

from lactchain.config.parsing import parse
from lactchain.config.settings import TrainingConfig
from lactchain.data.token_view import TokenView
from lactchain.functional.tokens import pad
from lactchain.models.loading import load_actor, load_own_tokenizer
from lactchain.models.values import ValueModel
from lactchain.runs.process import seed_everything
from lactchain.runs.run import Run
from lactchain.stages.token_values import read_view
from lactchain.stages.train_ilql import TrainILQLConfig
from lactchain.trainers.base import training_arguments
from lactchain.trainers.token_values import ILQLTrainer


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--config", required=True, help="a configuration of train_ilql")
    parser.add_argument("--episodes", type=int, default=8, help="whose decisions are a batch")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    options, settings = parser.parse_known_args()
    torch.set_num_threads(1)
    config = parse(TrainILQLConfig, ["--config", options.config, *settings])
    _, view, _ = read_view(config, load_own_tokenizer(config.actor))
    view = first_episodes(view, options.episodes)
    tokens = int(view.num_tokens.sum())
    print(f"{len(view)} decisions of {options.episodes} episodes, {tokens} agent tokens")
    with tempfile.TemporaryDirectory() as folder:
        sides = {"plain": plain(config, view, Path(folder) / "plain")}
        for name, group_by in (("merged", "prompt"), ("episodes", "episode")):
            sides[name] = ilql(config, view, group_by, Path(folder) / name)
        runs = {name: partial(step_seconds, side, options.steps) for name, side in sides.items()}
        taken = in_turns(runs, options.repeats, lambda run: run())
    for name, seconds in taken.items():
        overhead = ratio(seconds, taken["plain"])
        speed = tokens / statistics.median(seconds)
        print(f"{name:9} {speed:9.0f} agent tokens per CPU-second, overhead {overhead:.2f}")


def first_episodes(view: TokenView, count: int) -> TokenView:
    """The decisions of the first episodes."""
    rows, names = view.episodes < count, ("prompt_tm1", "completion_tm1", "prompt_t", "rewards")
    names += ("terminated", "last", "episodes")
    return replace(view, **{name: getattr(view, name)[rows] for name in names})


def plain(config: TrainILQLConfig, view: TokenView, folder: Path) -> Trainer:
    """Cloning on padded rows, the whole batch in one."""
    seed_everything(0, 1)
    model, tokenizer = load_actor(config.actor, trainable=True)
    rows = [view.mask(row) for row in range(len(view))]

    def collate(rows: list) -> dict[str, torch.Tensor]:
        labels = [np.where(mask, ids, -100).tolist() for ids, mask in rows]
        return {
            "input_ids": pad([ids for ids, _ in rows], tokenizer.pad_token_id),
            "attention_mask": pad([[1] * len(ids) for ids, _ in rows], 0),
            "labels": pad(labels, -100),
        }

    args = arguments(folder, len(rows))
    return Trainer(model, args, data_collator=collate, train_dataset=rows)


def ilql(config: TrainILQLConfig, view: TokenView, group_by: str, folder: Path) -> ILQLTrainer:
    """ILQL on the same decisions, the whole batch in one."""
    seed_everything(0, 1)
    settings = replace(config.ilql, group_by=group_by)
    model = ValueModel.from_actor(
        config.actor, method="ilql", gamma=settings.gamma, num_q_heads=2,
        head_size=settings.head_size, start=-1.0,
    )  # fmt: skip
    with Run.open(str(folder), settings) as run:
        args = arguments(folder / "checkpoints", len(view))
        return ILQLTrainer(model, args, view, settings, run=run)


def arguments(folder: Path, batch_size: int):
    """Equal ones for both sides."""
    training = TrainingConfig(batch_size=batch_size, max_steps=1000)
    return training_arguments(training, folder, 0, disable_tqdm=True)


def step_seconds(trainer: Trainer, steps: int) -> float:
    """CPU-seconds of a step: collating, forward, backward, optimiser, target network."""
    loader = trainer.get_train_dataloader()
    trainer.model.train()
    if trainer.optimizer is None:
        trainer.create_optimizer()
    start = 0.0
    for step in range(steps + 2):  # two to warm up
        if step == 2:
            start = time.process_time()
        (batch,) = list(loader)
        loss = trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        if isinstance(trainer, ILQLTrainer):
            trainer.values.update_target(trainer.settings.tau)
    return (time.process_time() - start) / steps


if __name__ == "__main__":
    main()
