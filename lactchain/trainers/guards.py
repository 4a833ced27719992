"""Checked steps, verified checkpoints, exact resume, stops that lose nothing.

`GuardedTrainer` is `transformers.Trainer` with what a long run needs: a step whose loss or gradient
is not finite is never taken; a signal saves and stops; a checkpoint counts only once its manifest
is written.
"""

import json
import random
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate.utils import save_fsdp_optimizer
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader
from transformers import ProgressCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks
from transformers.trainer import SCHEDULER_NAME
from transformers.trainer_utils import TrainOutput

from lactchain.errors import Interrupted, NonFiniteError
from lactchain.models.adapters import as_its_base, base_folder, write_adapter_record
from lactchain.models.headed import load_trained
from lactchain.models.loading import readable
from lactchain.models.runtime import is_sharded, local, quiet, whole_state
from lactchain.runs import distributed
from lactchain.runs.console import under_way
from lactchain.runs.process import provenance, stop_requested
from lactchain.runs.run import OptionalTracker, Run
from lactchain.storage.checkpoints import clear_place, prune_checkpoints
from lactchain.storage.files import disk_errors, read_json, write_json
from lactchain.storage.manifests import write_manifest

LOWER = "begin anew with a lower training.learning_rate and another run.run_dir"
"""What helps against numbers that are not finite; a run folder keeps to its settings."""

GENERATORS = (
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
    (torch.get_rng_state, torch.set_rng_state),
    (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all),
)
"""What reads, and what sets, where each random number generator stands."""


def readable_state(checkpoint: str | Path | None) -> AbstractContextManager[None]:
    """A state that cannot be taken is a `DataError`, though a manifest vouches for its bytes."""
    how = "remove it to go on from the one before"
    return readable(checkpoint, how, "its state cannot be read")


class GuardedTrainer(transformers.Trainer, TrainerCallback):
    """A trainer that hears of its own training, as its callback: the methods `on_...`.

    Args:
        run: receives the metrics, and the batch that made a step non-finite.
        keep_checkpoints: how many verified checkpoints stay.
    """

    def __init__(self, *args: Any, run: Run, keep_checkpoints: int = 2, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = run
        self.keep_checkpoints = keep_checkpoints
        weights = next(self.model.parameters(), torch.empty(0))  # of the trunk, which come first
        self.provenance = provenance() | {"dtype": str(weights.dtype).removeprefix("torch.")}
        self.stopped = False
        self.parent_checkpoint: str | None = None
        self._sums: dict[str, Tensor] = {}
        self._window_file = f"window_{self.args.process_index}.json"
        self._micro_batches: list[tuple[dict[str, Any], Tensor]] = []
        self._random_states: list[Any] = []
        if self.is_fsdp_enabled and self.accelerator.mixed_precision != "no":
            # accelerate would round sums of gradients, values and logits to 16 bits.
            plugin = self.accelerator.state.fsdp_plugin
            plugin.mixed_precision_policy = replace(
                plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
            )
        trackers = tuple(get_reporting_integration_callbacks(self.args.report_to))
        callbacks = self.callback_handler.callbacks
        for place, callback in enumerate(callbacks):
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(run.path("tensorboard"))
                # Called when the training begins, and knows what it goes on from.
                writer = callback._SummaryWriter
                callback._SummaryWriter = lambda log_dir, writer=writer: writer(
                    log_dir, purge_step=self.state.global_step + 1
                )
            if isinstance(callback, trackers):
                callbacks[place] = OptionalTracker(
                    lambda tracker=callback: tracker, type(callback).__name__
                )
        self.pop_callback(ProgressCallback)
        self.add_callback(self)

    # --- from the start of a training to its end, in this order ----------------------------------

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trains, and says how far it is."""
        with under_way("training") as self.step:
            return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        """Each row comes once an epoch, whatever the number of processes."""
        return share_out(super().get_train_dataloader())

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Goes on with the logging window of a checkpoint; says how long the training is."""
        if self.parent_checkpoint is not None:
            checkpoint = Path(args.output_dir, self.parent_checkpoint)
            with readable_state(checkpoint):
                stored = read_json(checkpoint / self._window_file)
                exact = {"dtype": torch.float64, "device": args.device}
                self._sums = {n: torch.tensor(s, **exact) for n, s in stored["sums"].items()}
                self._tr_loss = self._tr_loss.new_tensor(stored["loss"])
                self._globalstep_last_logged = stored["last_logged"]
        self.step.total = state.max_steps
        self.step.resumed(state.global_step)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any) -> Tensor:
        """One forward and backward pass; remembers the batch until the update has been checked."""
        if not self._micro_batches:
            self._window_before = self._tr_loss.clone(), dict(self._sums)
        loss = super().training_step(model, inputs, *args)
        self._micro_batches.append((inputs, loss))
        return loss

    def compute_loss_context_manager(self) -> ExitStack:
        """Passes through the model: those of an adapter in the type of its base."""
        context = super().compute_loss_context_manager()
        context.enter_context(as_its_base(self.model))
        return context

    def on_substep_end(self, args, state, control, **kwargs) -> None:
        """Ends the training within an update, if a signal came to any process.

        A run that goes on accumulates anew: the draws are taken back, and the metrics.
        """
        if not distributed.any_of(stop_requested() > 0):
            return
        self._micro_batches.clear()
        self._tr_loss, self._sums = self._window_before
        for (_, put_back), before in zip(GENERATORS, self._random_states, strict=False):
            put_back(before)
        self.save_now()
        self.stopped = control.should_training_stop = True

    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        """Raises `NonFiniteError` instead of letting a bad step happen."""
        self.check_update()

    def check_update(self) -> None:
        """Called before the optimiser steps: all processes agree to go on, to save, or to fail.

        `NonFiniteError` on every process, if a loss or gradient on any is NaN or infinite. The
        batch is written to the run's folder, the weights are those before the step.
        """
        losses = torch.stack([loss.float() for _, loss in self._micro_batches])
        gradients = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        found = ~losses.isfinite().all(), ~norm.isfinite(), torch.tensor(stop_requested() > 0)
        flags = torch.stack([flag.to(losses.device) for flag in found]).int()
        bad_loss, bad_gradient, stop = (self.accelerator.reduce(flags) > 0).tolist()
        if bad_loss or bad_gradient:
            self._fail(losses.tolist(), "loss" if bad_loss else "gradient")
        self._micro_batches.clear()
        self.stopped = stop

    def _fail(self, losses: list[float], what: str) -> None:
        step, rank = self.state.global_step + 1, self.args.process_index
        path = self.run.path(f"nonfinite/step-{step}-rank-{rank}.safetensors")
        batches = {
            f"{index}.{name}": tensor.contiguous()
            for index, (inputs, _) in enumerate(self._micro_batches)
            for name, tensor in inputs.items()
            if isinstance(tensor, Tensor)
        }
        metadata = {"losses": json.dumps([str(loss) for loss in losses])}
        with disk_errors(path):
            save_file(batches, path, metadata=metadata)
        raise NonFiniteError(
            f"step {step}, rank {rank}: the {what} is not finite (losses {losses}); the step was "
            f"not taken, its batch is in {path}, the last good state is {self.args.output_dir}/"
            f"{self.parent_checkpoint or '(none yet)'}; {LOWER}"
        )

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Saves and ends the training, if a signal came; an evaluation due now is left out.

        What is random goes on from here, also in a resumed run. The last window is logged before
        the last checkpoint, which vouches for it then.
        """
        self._random_states = [read() for read, _ in GENERATORS]
        self.step.at(state.global_step)
        if state.global_step >= state.max_steps:
            control.should_log = True
        elif self.stopped:
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def stop_if_asked(self) -> None:
        """Raises `Interrupted` in an evaluation, on all processes; nothing else is lost."""
        if distributed.any_of(stop_requested() > 0):
            raise self.interruption(f"in an evaluation after step {self.state.global_step}")

    def interruption(self, where: str) -> Interrupted:
        """The error of a stop, which says where the state is, if there is any."""
        saved = f"saved in {self.args.output_dir}; give the same command to go on"
        if self.state.global_step == 0:
            saved = "before there was anything to save; give the same command to begin again"
        return Interrupted(stop_requested() or signal.SIGTERM, f"stopped {where}, {saved}")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, also to metrics.jsonl, with the means of what all processes recorded since then.

        Not how long a training took that was stopped: it goes on, and the window with it.
        """
        if "train_runtime" in logs and self.state.global_step < self.state.max_steps:
            return
        evaluated = any(name.startswith("eval_") for name in logs)
        if not evaluated:
            logs |= self.means_of_window()
        super().log(logs, start_time)
        metrics = {metric_key(name): value for name, value in logs.items()}
        # An evaluation behind the training is repeated where a crash came before the summary.
        write = self.run.log_once if evaluated else self.run.log
        write(metrics, step=self.state.global_step)
        if "loss" in logs:
            self.step.note = f"loss {float(logs['loss']):.3g}"

    # --- the logging window, of which a checkpoint holds what came before it ----------------------

    def record(self, **metrics: Tensor) -> None:
        """Adds numbers to the metrics of the current logging window, which logs their mean."""
        for name, values in metrics.items():
            values = values.detach().double()
            entry = torch.stack([values.sum(), values.new_tensor(float(values.numel()))])
            entry = entry.to(self.args.device)  # some come from the CPU, and all are added up
            self._sums[name] = self._sums[name] + entry if name in self._sums else entry

    def means_of_window(self) -> dict[str, float]:
        """The means over all processes of what was recorded; the window starts anew."""
        sums, self._sums = self._sums, {}
        if not sums:
            return {}
        totals = self.accelerator.reduce(torch.stack(list(sums.values()))).tolist()
        return {name: s / n for name, (s, n) in zip(sums, totals, strict=True) if n}

    # --- checkpoints ------------------------------------------------------------------------------

    def save_now(self) -> None:
        """Saves the state after the last update, unless that was done."""
        step = self.state.global_step
        if step > 0 and self.parent_checkpoint != f"checkpoint-{step}":
            self._save_checkpoint(self.model_wrapped, None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Saves; refuses weights that are not finite, and never writes into an older attempt."""
        trained = ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)
        bad = [name for name, parameter in trained if not local(parameter).isfinite().all()]
        if distributed.any_of(bool(bad)):
            raise NonFiniteError(
                f"step {self.state.global_step}: {', '.join(bad[:1]) or 'a weight elsewhere'} is "
                f"not finite, no checkpoint is written; {LOWER}"
            )
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if self.is_world_process_zero():
            clear_place(checkpoint)
        self.accelerator.wait_for_everyone()
        with disk_errors(checkpoint):
            super()._save_checkpoint(model, trial)

    def on_save(self, args, state, control, **kwargs) -> None:
        """Declares a checkpoint valid once all processes wrote their part; then prunes old ones."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            named = self.model.named_parameters()
            facts = {
                "parent": self.parent_checkpoint,
                "global_step": state.global_step,
                "max_steps": state.max_steps,
                "trainable": [name for name, parameter in named if parameter.requires_grad],
                "metrics": self.run.mark_metrics(),
                **self.provenance,
            }
            write_manifest(checkpoint, facts)
            prune_checkpoints(args.output_dir, self.keep_checkpoints)
        self.accelerator.wait_for_everyone()
        self.parent_checkpoint = checkpoint.name

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes what is trained; of a sharded model that is all that is gathered."""
        adapted = isinstance(self.model, PeftModel)
        self._save(output_dir, whole_state(self.model, only_trained=adapted))

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Writes trainable weights and tokenizer; leaves out the pickled arguments."""
        with quiet():
            super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return
        directory = Path(output_dir or self.args.output_dir)
        (directory / "training_args.bin").unlink()
        if isinstance(self.model, PeftModel):
            write_adapter_record(directory, base_folder(self.model))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Without the second copy of all weights that transformers writes of a sharded model."""
        if not is_sharded(self.model):
            super()._save_optimizer_and_scheduler(output_dir)
            return
        plugin = self.accelerator.state.fsdp_plugin
        save_fsdp_optimizer(plugin, self.accelerator, self.optimizer, self.model, output_dir)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _save_rng_state(self, output_dir: str) -> None:
        """Saves what belongs to this process: random states, and its logging window."""
        super()._save_rng_state(output_dir)
        stored = {"last_logged": self._globalstep_last_logged, "loss": self._tr_loss.item()}
        listed = {name: entry.tolist() for name, entry in self._sums.items()}
        write_json(Path(output_dir) / self._window_file, {**stored, "sums": listed})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with readable_state(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with readable_state(checkpoint):
            super()._load_rng_state(checkpoint)

    def _load_from_checkpoint(self, checkpoint: str, model: nn.Module | None = None) -> None:
        load_trained(self.model, Path(checkpoint))


class SharedOut(BatchSampler):
    """Batches of a sampler in updates of `num_processes`; what is left over is spread among them.

    accelerate would fill the last update up with rows that count twice then. Losses here are means
    over an update, so its batches may differ in size. No process may be without one: of fewer rows
    than processes some come more than once.
    """

    def __init__(self, batches: BatchSampler, num_processes: int) -> None:
        super().__init__(batches.sampler, batches.batch_size, batches.drop_last)
        self.num_processes = num_processes

    def __len__(self) -> int:
        whole, left = divmod(super().__len__(), self.num_processes)
        return self.num_processes * (whole + (left > 0 and not self.drop_last))

    def __iter__(self) -> Iterator[list[int]]:
        update: list[list[int]] = []
        for batch in super().__iter__():
            update.append(batch)
            if len(update) == self.num_processes:
                yield from update
                update = []
        rows, count = sum(update, []), self.num_processes
        if rows and not self.drop_last:
            yield from (rows[rank::count] or [rows[rank % len(rows)]] for rank in range(count))


def share_out(loader: DataLoader) -> DataLoader:
    """The loader that accelerate has prepared for training, with each row once an epoch."""
    shard = loader.batch_sampler
    count = getattr(shard, "num_processes", 1)
    if count > 1 and not shard.split_batches:
        shard.batch_sampler, shard.even_batches = SharedOut(shard.batch_sampler, count), False
    return loader


def metric_key(name: str) -> str:
    """Our spelling of the name that transformers gives a metric; what has a slash stays.

    `eval_loss` → `eval/loss`, `loss` → `train/loss`, `train_runtime` → `time/train_runtime`.
    """
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    if name.startswith("train_"):  # the summary of a whole training
        return f"time/{name}"
    return name if "/" in name else f"train/{name}"
