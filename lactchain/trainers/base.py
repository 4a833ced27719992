"""What the trainers share: arguments, verified checkpoints, exact resume, stops that lose nothing.

`GuardedTrainer` is mixed in before `transformers.Trainer` (or a subclass of TRL's), which does the
training. It adds what a long run needs: a step whose loss or gradient is not finite is never taken;
a signal saves and stops; a checkpoint counts only once its manifest is written.
"""

from __future__ import annotations

import json
import math
import random
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate.utils import FullyShardedDataParallelPlugin, save_fsdp_optimizer
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import (
    ProgressCallback,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import SCHEDULER_NAME
from transformers.trainer_utils import TrainOutput

from lactchain import distributed
from lactchain.checkpoints import clear_place, latest_checkpoint, prune_checkpoints
from lactchain.errors import ConfigError, DataError, Interrupted, NonFiniteError
from lactchain.files import disk_errors
from lactchain.manifests import verify_manifest, write_manifest
from lactchain.models.adapters import base_folder, seal_adapter
from lactchain.models.headed import load_trained
from lactchain.models.runtime import device, quiet
from lactchain.models.sharding import is_sharded, local, whole_state
from lactchain.process import stop_requested
from lactchain.provenance import provenance
from lactchain.run import Run
from lactchain.settings import TrainingConfig

NEVER = 10**9
"""A number of updates that no run reaches."""


def training_arguments(
    settings: TrainingConfig,
    output_dir: str | Path,
    seed: int,
    *,
    report_to: Iterable[str] = (),
    arguments_class: type[TrainingArguments] = TrainingArguments,
    **more: Any,
) -> TrainingArguments:
    """The arguments of `transformers.Trainer` for our settings on the device at hand.

    Whether it computes in mixed precision is accelerate's to say (`configs/accelerate`).

    Args:
        output_dir: folder of the `checkpoint-N/`.
        report_to: trackers beside the local metrics.jsonl.
        arguments_class: a subclass for trainers that bring their own, such as TRL's.
        more: further arguments that the trainer in question fixes.

    Raises:
        ConfigError: `settings.extra` holds an argument that does not exist or is set elsewhere.
    """
    on_cuda = device().type == "cuda"
    known = arguments_class.__dataclass_fields__
    # Renamed in transformers 5.23; the old name warns where the new one is known.
    names = ("activation_checkpointing", "gradient_checkpointing")
    checkpointing = next(name for name in names if name in known)
    fixed: dict[str, Any] = {
        "output_dir": str(output_dir),
        "seed": seed,
        "data_seed": seed,
        "num_train_epochs": settings.num_epochs,
        "max_steps": settings.max_steps,
        "learning_rate": settings.learning_rate,
        "per_device_train_batch_size": settings.batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        checkpointing: settings.gradient_checkpointing,
        "save_strategy": "steps",
        "save_steps": settings.save_every_updates or NEVER,
        "save_total_limit": None,  # it rotates before the new checkpoint is verified
        "logging_steps": settings.log_every_updates,
        "logging_nan_inf_filter": False,
        "report_to": list(report_to),
        "bf16": False,  # TRL would switch it on
        "use_cpu": not on_cuda,
        "dataloader_pin_memory": on_cuda,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
        "ddp_timeout": int(distributed.timeout().total_seconds()),
        **more,
    }
    for name in settings.extra:
        if name not in known:
            raise ConfigError(
                f"training.extra.{name}: no such argument of {arguments_class.__name__}"
            )
        if name in fixed:
            raise ConfigError(
                f"training.extra.{name}: set by the trainer itself or by a field of `training`"
            )
    defaults = {
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,  # below 1 transformers takes it for a share of the steps
        "optim": "adamw_torch",
        "disable_tqdm": False,
        "per_device_eval_batch_size": settings.batch_size,
    }
    arguments = arguments_class(**{**defaults, **fixed, **settings.extra})
    # A process that sees several GPUs would spread each batch over all of them (nn.DataParallel),
    # under other batch sizes than those of the settings.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


class GuardedTrainer:
    """Mixin before `transformers.Trainer`: checked steps, verified checkpoints, window metrics.

    Args:
        run: receives the metrics, and the batch that made a step non-finite.
        keep_checkpoints: how many verified checkpoints stay.
        facts: further entries of each manifest, such as the fingerprint of the base model.
    """

    def __init__(
        self,
        *args: Any,
        run: Run,
        keep_checkpoints: int = 2,
        facts: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.run = run
        self.keep_checkpoints = keep_checkpoints
        self.facts = facts or {}
        self.provenance = provenance()
        self.stopped = False
        self.length_sampler: LengthGroupedSampler | None = None
        self.parent_checkpoint: str | None = None
        self._micro_batches: list[tuple[dict[str, Any], Tensor]] = []
        self._random_states: RandomStates | None = None
        self._windows = {True: MetricWindow(), False: MetricWindow()}
        if self.is_fsdp_enabled and self.accelerator.mixed_precision != "no":
            self._keep_results_in_float32(self.accelerator.state.fsdp_plugin)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(ProgressBarCallback())
        for callback in (GuardCallback(self), ManifestCallback(self), MetricsCallback(self.run)):
            self.add_callback(callback)

    @staticmethod
    def _keep_results_in_float32(plugin: FullyShardedDataParallelPlugin) -> None:
        """Sums gradients of processes, and gives values and logits out, as they were computed.

        accelerate would round both to 16 bits.
        """
        policy = plugin.mixed_precision_policy
        plugin.mixed_precision_policy = replace(
            policy, reduce_dtype=torch.float32, output_dtype=None
        )

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any) -> Tensor:
        """One forward and backward pass; remembers the batch until the update has been checked."""
        loss = super().training_step(model, inputs, *args)
        self._micro_batches.append((inputs, loss))
        return loss

    def row_length(self, row: Any) -> int:
        """Length of a row of the data set, by which rows are grouped where that was asked for."""
        return len(row["input_ids"])

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        """Replaces the sampler of `train_sampling_strategy: group_by_length`.

        That of transformers draws from the global random state: a resumed run would see other
        batches.
        """
        if vars(self.args).get("train_sampling_strategy") != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        lengths = [self.row_length(row) for row in self.train_dataset]
        batch_size = self.args.train_batch_size * self.args.world_size
        self.length_sampler = LengthGroupedSampler(lengths, batch_size, self.args.seed)
        return self.length_sampler

    def set_epoch(self, epoch: int) -> None:
        """Called before each epoch, the first one after a resume included."""
        if self.length_sampler is not None:
            # accelerate finds its way to a sampler not in a resumed epoch on several processes.
            self.length_sampler.set_epoch(epoch)

    def check_update(self) -> None:
        """Called before the optimiser steps: all processes agree to go on, to save, or to fail.

        Raises:
            NonFiniteError: on every process, if a loss or gradient on any is NaN or infinite. The
                batch is written to the run's folder, the weights are those before the step.
        """
        losses = torch.stack([loss.float() for _, loss in self._micro_batches])
        gradients = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        bad = torch.stack(
            [losses.isfinite().all(), norm.isfinite().to(losses.device)]
        ).logical_not()
        asked = torch.tensor([stop_requested() > 0], device=losses.device)
        flags = self.accelerator.reduce(torch.cat([bad, asked]).int())
        bad_loss, bad_gradient, stop = (flags > 0).tolist()
        if bad_loss or bad_gradient:
            self._fail(losses.tolist(), "loss" if bad_loss else "gradient")
        self._micro_batches.clear()
        self.stopped = stop

    def update_taken(self) -> None:
        """Called after each update: what is random goes on from here, also in a resumed run."""
        self._random_states = random_states()

    def drop_update(self) -> None:
        """Saves the state after the last whole update; what was accumulated since is computed anew.

        The draws of the micro-batches that are dropped are taken back.
        """
        self._micro_batches.clear()
        if self._random_states is not None:
            set_random_states(self._random_states)
        self.save_now()
        self.stopped = True

    def _fail(self, losses: list[float], what: str) -> None:
        step, rank = self.state.global_step + 1, self.args.process_index
        path = Path(self.run.path(f"nonfinite/step-{step}-rank-{rank}.safetensors"))
        path.parent.mkdir(parents=True, exist_ok=True)
        batches = {
            f"{index}.{name}": tensor.contiguous()
            for index, (inputs, _) in enumerate(self._micro_batches)
            for name, tensor in inputs.items()
            if isinstance(tensor, Tensor)
        }
        save_file(batches, path, metadata={"losses": json.dumps([str(loss) for loss in losses])})
        raise NonFiniteError(
            f"step {step}, rank {rank}: the {what} is not finite (losses {losses}); the step was "
            f"not taken, its batch is in {path}, the last good state is {self._last_checkpoint()}. "
            "Start another run with a lower training.learning_rate"
        )

    def _last_checkpoint(self) -> str:
        return f"{self.args.output_dir}/{self.parent_checkpoint or '(none yet)'}"

    def stop_if_asked(self) -> None:
        """Called between the batches of an evaluation; all processes agree.

        Raises:
            Interrupted: a signal came. The evaluation is lost, and nothing else.
        """
        if distributed.any_of(stop_requested() > 0):
            raise Interrupted(
                stop_requested() or signal.SIGTERM,
                f"stopped in an evaluation after step {self.state.global_step}, "
                f"{self.what_is_saved()}",
            )

    def what_is_saved(self) -> str:
        """The end of a message about a stop: where the state is, if there is any."""
        if self.state.global_step == 0:
            return "before there was anything to save; give the same command to begin again"
        return f"saved in {self.args.output_dir}; give the same command to go on"

    def save_now(self) -> None:
        """Saves the state after the last update, unless that was done."""
        step = self.state.global_step
        if step > 0 and self.parent_checkpoint != f"checkpoint-{step}":
            self._save_checkpoint(self.model_wrapped, None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluates, without a trace in the random state.

        Each pass through a DataLoader draws a number, and a run that resumes from a checkpoint does
        not repeat the evaluation that came after it.
        """
        with torch.random.fork_rng(devices=[]):
            return super().evaluate(*args, **kwargs)

    def record(self, **metrics: Tensor) -> None:
        """Adds numbers to the metrics of the current logging window, which logs their mean."""
        self._windows[self.model.training].add(metrics)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, with the means over all processes of what was recorded since the last time."""
        training = self.model.training
        prefix = "" if training else "eval_"
        means = self._windows[training].pop(self.accelerator)
        logs |= {f"{prefix}{name}": mean for name, mean in means.items()}
        super().log(logs, start_time)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Saves; refuses weights that are not finite, and never writes into an older attempt."""
        trained = ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)
        bad = [name for name, parameter in trained if not local(parameter).isfinite().all()]
        if distributed.any_of(bool(bad)):
            raise NonFiniteError(
                f"step {self.state.global_step}: {', '.join(bad[:1]) or 'a weight elsewhere'} is "
                "not finite, no checkpoint is written; give the same command with a lower "
                "training.learning_rate"
            )
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if self.is_world_process_zero():
            clear_place(checkpoint)
        self.accelerator.wait_for_everyone()
        with disk_errors(checkpoint):
            super()._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes what is trained; of a sharded model that is all that is gathered."""
        state = None
        if is_sharded(self.model):
            state = whole_state(self.model, only_trained=isinstance(self.model, PeftModel))
        self._save(output_dir, state)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Writes trainable weights and tokenizer; leaves out the pickled arguments."""
        with quiet():
            super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return
        directory = Path(output_dir or self.args.output_dir)
        (directory / "training_args.bin").unlink()
        if isinstance(self.model, PeftModel):
            seal_adapter(directory, base_folder(self.model))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Without the second copy of all weights that transformers writes of a sharded model."""
        if not is_sharded(self.model):
            super()._save_optimizer_and_scheduler(output_dir)
            return
        plugin = self.accelerator.state.fsdp_plugin
        save_fsdp_optimizer(plugin, self.accelerator, self.optimizer, self.model, output_dir)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_from_checkpoint(self, checkpoint: str, model: nn.Module | None = None) -> None:
        load_trained(self.model, Path(checkpoint))


class RunTrainer(GuardedTrainer, transformers.Trainer):
    """Base of the trainers whose `compute_loss` returns the mean over its batch."""

    loss_is_scaled_for_ga = False

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, None, None]:
        """The loss of one batch; metrics go through `record`."""
        with torch.no_grad():
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
        return loss.detach(), None, None


class UpdateMeanTrainer(RunTrainer):
    """Base of the trainers whose loss is made of means over all items of an update.

    Which rows share a micro-batch or a process then makes no difference, however many tokens each
    of them has.
    """

    loss_is_scaled_for_ga = True

    def num_items(self, inputs: dict[str, Tensor]) -> Tensor:
        """Over how many rows or tokens of a batch each mean of the loss is, (K,)."""
        raise NotImplementedError

    def shares(self, inputs: dict[str, Tensor], num_items_in_batch: Tensor | None) -> Tensor:
        """What the means over a batch count among those over the update, (K,); 1 without one."""
        items = self.num_items(inputs)
        return items / (items if num_items_in_batch is None else num_items_in_batch)

    def _get_num_items_in_batch(
        self, batch_samples: list[dict[str, Tensor]], device: torch.device
    ) -> Tensor:
        """Items of the update, (K,), as a mean over processes, since gradients are one, too."""
        items = torch.stack([self.num_items(inputs) for inputs in batch_samples]).sum(dim=0)
        return self.accelerator.reduce(items.to(device)) / self.args.world_size


class HeadedTrainer(UpdateMeanTrainer):
    """Base of the trainers of a `HeadedModel`, which knows itself how it is saved and loaded."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes what is trained."""
        self.model.save(output_dir or self.args.output_dir, write=self.args.should_save)

    def _load_from_checkpoint(self, checkpoint: str, model: nn.Module | None = None) -> None:
        self.model.load_weights(checkpoint)


def train(trainer: Any) -> TrainOutput:
    """Trains from the newest valid checkpoint in the trainer's folder, or from the start.

    Args:
        trainer: a `GuardedTrainer`.

    Raises:
        Interrupted: a signal asked to stop; the state is saved.
        NonFiniteError: see `GuardedTrainer.check_update`.
        DataError: the checkpoint does not fit this launch.
    """
    checkpoint = latest_checkpoint(trainer.args.output_dir)
    if checkpoint is not None:
        _check_conditions(trainer, checkpoint)
        trainer.parent_checkpoint = checkpoint.name
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        if state.global_step >= state.max_steps:
            trainer._load_from_checkpoint(str(checkpoint))
            trainer.state = state
            return TrainOutput(state.global_step, math.nan, {})
    try:
        output = trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    except Interrupted:  # between updates, in an evaluation
        trainer.save_now()
        raise
    _restore_forward(trainer)
    if trainer.stopped:
        raise Interrupted(
            stop_requested() or signal.SIGTERM,
            f"stopped at step {trainer.state.global_step} of {trainer.state.max_steps}, "
            f"{trainer.what_is_saved()}",
        )
    return output


def save_result(
    trainer: Any, directory: str | Path, files: Mapping[str, str] | None = None
) -> None:
    """Writes the trained weights into a folder that other runs can start from, its manifest last.

    Args:
        files: further texts of the folder, by name.

    Raises:
        DiskError: the disk is full or read-only.
    """
    with disk_errors(directory):
        trainer.save_model(str(directory))
        if trainer.is_world_process_zero():
            for name, text in (files or {}).items():
                (Path(directory) / name).write_text(text, "utf-8")
    if trainer.is_world_process_zero():
        write_manifest(directory, trainer.facts)
    trainer.accelerator.wait_for_everyone()


def _restore_forward(trainer: Any) -> None:
    """Undoes what accelerate (autocast) and TRL (fused head) put in the place of `forward`.

    Both are closures over this model: in a copy they would go on computing with the original.
    """
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    vars(model).pop("forward", None)
    if isinstance(model, PeftModel):
        vars(model.get_base_model()).pop("forward", None)


def _check_conditions(trainer: Any, checkpoint: Path) -> None:
    """Refuses a checkpoint of another number of processes or threads, or without random states."""
    recorded, current = verify_manifest(checkpoint), trainer.provenance
    rank = trainer.args.process_index
    random_states = f"rng_state_{rank}.pth" if trainer.args.world_size > 1 else "rng_state.pth"
    problems = [
        f"{name} was {recorded[name]}, is {current[name]}"
        for name in ("world_size", "threads")
        if recorded[name] != current[name]
    ]
    if not (checkpoint / random_states).is_file():
        problems.append(f"{random_states} is missing")
    if problems:
        raise DataError(
            f"{checkpoint}: {'; '.join(problems)}, so that the run would not go on exactly; "
            "launch it as before, or give another run.run_dir to begin anew"
        )


RandomStates = tuple[Any, Any, Tensor, list[Tensor]]
"""Of python, numpy, torch, and torch's devices."""


def random_states() -> RandomStates:
    """Where all random number generators stand."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    return *states, torch.cuda.get_rng_state_all()


def set_random_states(states: RandomStates) -> None:
    """Sets them back."""
    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    torch.cuda.set_rng_state_all(cuda)


class GuardCallback(TrainerCallback):
    """Announces epochs, checks each update before it is taken, stops after it if so asked."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args, state, control, **kwargs) -> None:
        """Tells the trainer which epoch it is."""
        self.trainer.set_epoch(int(state.epoch or 0))

    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        """Raises `NonFiniteError` instead of letting a bad step happen."""
        self.trainer.check_update()

    def on_substep_end(self, args, state, control, **kwargs) -> None:
        """Ends the training within an update, if a signal came to any process."""
        if distributed.any_of(stop_requested() > 0):
            self.trainer.drop_update()
            control.should_training_stop = True

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Saves and ends the training, if a signal came; an evaluation due now is left out."""
        self.trainer.update_taken()
        if self.trainer.stopped and state.global_step < state.max_steps:
            control.should_save = True
            control.should_evaluate = False
            control.should_training_stop = True

    def on_prediction_step(self, args, state, control, **kwargs) -> None:
        """Ends an evaluation at once, if a signal came."""
        self.trainer.stop_if_asked()


class ManifestCallback(TrainerCallback):
    """Declares each checkpoint valid once all processes wrote their part; then prunes old ones."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_save(self, args, state, control, **kwargs) -> None:
        """Writes the manifest, last of all files."""
        trainer = self.trainer
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        trainer.accelerator.wait_for_everyone()
        if trainer.is_world_process_zero():
            write_manifest(checkpoint, self._facts(state))
            prune_checkpoints(args.output_dir, trainer.keep_checkpoints)
        trainer.accelerator.wait_for_everyone()
        trainer.parent_checkpoint = checkpoint.name

    def _facts(self, state: TrainerState) -> dict[str, Any]:
        return {
            "parent": self.trainer.parent_checkpoint,
            "global_step": state.global_step,
            "max_steps": state.max_steps,
            "trainable": [n for n, p in self.trainer.model.named_parameters() if p.requires_grad],
            **self.trainer.provenance,
            **self.trainer.facts,
        }


class ProgressBarCallback(ProgressCallback):
    """A bar that does not print every record: they are in metrics.jsonl."""

    def on_log(self, args, state, control, logs: dict[str, float] | None = None, **kwargs) -> None:
        """Shows the loss at the end of the bar."""
        if self.training_bar is not None and logs and "loss" in logs:
            self.training_bar.set_postfix_str(f"loss {float(logs['loss']):.3g}")


class MetricsCallback(TrainerCallback):
    """Sends what is logged to metrics.jsonl: `train/loss`, `eval/r2`, `rewards/margins`."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_log(self, args, state, control, logs: dict[str, float], **kwargs) -> None:
        """Appends one record."""
        metrics = {metric_key(name): value for name, value in logs.items()}
        self.run.log(metrics, step=state.global_step)


def metric_key(name: str) -> str:
    """Our spelling of the name that transformers gives a metric.

    `eval_loss` → `eval/loss`, `loss` → `train/loss`, `train_runtime` → `time/train_runtime`; what
    has a slash stays.
    """
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    if name.startswith("train_"):  # the summary of a whole training
        return f"time/{name}"
    return name if "/" in name else f"train/{name}"


class LengthGroupedSampler(Sampler[int]):
    """Random order in which each batch has rows of similar length, for less padding.

    Rows are shuffled, sorted by length within pools of `POOL` batches, and the batches shuffled
    again. The order follows from seed and epoch alone.
    """

    POOL = 16

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(len(self))
        pool = self.POOL * self.batch_size
        for start in range(0, len(order), pool):
            rows = order[start : start + pool]
            order[start : start + pool] = rows[np.argsort(self.lengths[rows], kind="stable")]
        # A last, smaller batch stays last: anywhere else it would shift the others.
        whole = len(order) - len(order) % self.batch_size
        batches = order[:whole].reshape(-1, self.batch_size)
        yield from rng.permutation(batches).ravel().tolist()
        yield from order[whole:].tolist()


class MetricWindow:
    """Sums and counts of metrics since they were last logged, on the device that computed them."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, metrics: dict[str, Tensor]) -> None:
        """Adds every entry of each tensor."""
        for name, values in metrics.items():
            values = values.detach().double()
            entry = torch.stack([values.sum(), values.new_tensor(float(values.numel()))])
            self._sums[name] = self._sums[name] + entry if name in self._sums else entry

    def pop(self, accelerator: Any) -> dict[str, float]:
        """The means over all processes; the window starts anew."""
        if not self._sums:
            return {}
        totals = accelerator.reduce(torch.stack(list(self._sums.values()))).tolist()
        means = {name: s / n for name, (s, n) in zip(self._sums, totals, strict=True)}
        self._sums = {}
        return means
