"""What a trainer is made of: its arguments, its base class, how it starts and what it leaves.

The bases are `transformers.Trainer` under `GuardedTrainer` (`lactchain.trainers.guards`).
"""

import copy
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput

from lactchain.config.settings import TrainingConfig
from lactchain.errors import ConfigError, Interrupted
from lactchain.models.runtime import device
from lactchain.runs import distributed
from lactchain.runs.process import refuse_unless_inexact
from lactchain.storage.checkpoints import latest_checkpoint
from lactchain.storage.files import disk_errors, in_bytes
from lactchain.storage.manifests import verify_manifest, write_manifest
from lactchain.trainers.guards import GuardedTrainer, readable_state

NEVER = 10**9
"""A number of updates that no run reaches."""

OUTWARD = ("push_to_hub", "hub_", "deepspeed", "fsdp", "parallelism_config", "trackio_")
"""Arguments of transformers by which a file of settings would reach out of its run."""
LEFT_ALONE = {
    "accelerator_config": None, "auto_find_batch_size": False, "enable_jit_checkpoint": False,
    "eval_on_start": False, "eval_strategy": "no", "ignore_data_skip": False,
    "resume_from_checkpoint": None, "save_only_model": False, "use_liger_kernel": False,
}  # fmt: skip
"""Arguments under which a run would not go on as it began, learn from other batches, or end in
what transformers wants besides."""
LARGE = 100_000_000
"""Bytes of a checkpoint that one wants to know of before the first is written."""

log = logging.getLogger(__name__)


def training_arguments(
    settings: TrainingConfig,
    output_dir: str | Path,
    seed: int,
    *,
    report_to: Iterable[str] = (),
    **more: Any,
) -> TrainingArguments:
    """The arguments of `transformers.Trainer` for our settings on the device at hand.

    Whether it computes in mixed precision is accelerate's to say (`configs/accelerate`).

    Args:
        output_dir: folder of the `checkpoint-N/`.
        report_to: trackers beside the local metrics.jsonl.
        more: further arguments that the trainer in question fixes.

    Raises:
        ConfigError: `settings.extra` holds an argument that does not exist, is set elsewhere, or
            has a value that transformers refuses.
    """
    on_cuda = device().type == "cuda"
    known = TrainingArguments.__dataclass_fields__
    fixed: dict[str, Any] = {
        "output_dir": str(output_dir),
        "seed": seed,
        "data_seed": seed,
        "num_train_epochs": settings.num_epochs,
        "max_steps": settings.max_steps,
        "learning_rate": settings.learning_rate,
        "per_device_train_batch_size": settings.batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "activation_checkpointing": settings.gradient_checkpointing,
        "save_strategy": "steps",
        "save_steps": settings.save_every_updates or NEVER,
        # Groups by length draw from the global random state: a resumed run would see other batches.
        "train_sampling_strategy": "random",
        "save_total_limit": None,  # it rotates before the new checkpoint is verified
        "logging_nan_inf_filter": False,
        "bf16": False,
        "fp16": False,
        "report_to": list(report_to),
        "use_cpu": not on_cuda,
        "dataloader_pin_memory": on_cuda,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
        "ddp_timeout": int(distributed.timeout.total_seconds()),
        **LEFT_ALONE,
        **more,
    }
    for name in settings.extra:
        if name not in known:
            raise ConfigError(f"training.extra.{name}: no such argument of TrainingArguments")
        if name.startswith(OUTWARD):
            raise ConfigError(
                f"training.extra.{name}: expected nothing that reaches beyond the run; lactchain "
                "export writes to the hub, and configs/accelerate spreads a training"
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
        "logging_steps": 10,
        "per_device_eval_batch_size": settings.batch_size,
    }
    try:
        arguments = TrainingArguments(**{**defaults, **fixed, **settings.extra})
        _try_steps(arguments)
    except Exception as error:  # noqa: BLE001  - theirs are of every kind (transformers 5.23)
        raise ConfigError(f"training.extra: refused by transformers: {error}") from error
    # A process that sees several GPUs would spread each batch over all of them (nn.DataParallel),
    # under other batch sizes than those of the settings.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _try_steps(arguments: TrainingArguments) -> None:
    """Makes optimiser and schedule for one number: what they refuse shows before the training."""
    for name in ("max_grad_norm", "weight_decay"):
        if not isinstance(value := getattr(arguments, name), int | float) or not value >= 0:
            raise ValueError(f"{name}: expected a number of at least 0, got {value!r}")
    optimizer_of = transformers.Trainer.get_optimizer_cls_and_kwargs
    kind, settings = optimizer_of(arguments)
    for name in ("optim_args", "optim_target_modules"):
        without = copy.copy(arguments)
        setattr(without, name, None)
        if getattr(arguments, name) and settings == optimizer_of(without)[1]:
            raise ValueError(f"{name}: {arguments.optim} takes none of it; leave it out")
    optimizer = kind([torch.nn.Parameter(torch.zeros(1))], **settings)
    transformers.get_scheduler(
        arguments.lr_scheduler_type,
        optimizer,
        num_warmup_steps=1,
        num_training_steps=10,
        scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,
    )


class RunTrainer(GuardedTrainer, transformers.Trainer):
    """Base of the trainers whose `compute_loss` returns the mean over its batch."""

    loss_is_scaled_for_ga = False


class UpdateMeanTrainer(RunTrainer):
    """Base of the trainers whose loss is made of means over all items of an update.

    Which rows share a micro-batch or a process then makes no difference, however many tokens each
    of them has.
    """

    loss_is_scaled_for_ga = True

    def num_items(self, inputs: dict[str, Tensor]) -> Tensor:
        """Over how many rows or tokens of a batch each mean of the loss is, (K,)."""
        raise NotImplementedError

    def loss_of(self, model: nn.Module, inputs: dict[str, Tensor], shares: Tensor) -> Tensor:
        """What a batch adds to the loss of its update.

        Args:
            shares: (K,) weights of the batch's means in those over the update; 1 outside of one.
        """
        raise NotImplementedError

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """As `transformers.Trainer` asks for it: see `loss_of`."""
        items = self.num_items(inputs)
        shares = items / (items if num_items_in_batch is None else num_items_in_batch)
        return self.loss_of(model, inputs, shares)

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


def train(trainer: GuardedTrainer) -> TrainOutput:
    """Trains from the newest valid checkpoint in the trainer's folder, or from the start.

    Raises:
        Interrupted: a signal asked to stop; the state is saved.
        NonFiniteError: see `GuardedTrainer.check_update`.
        DataError: the checkpoint does not fit this launch.
    """
    checkpoint = latest_checkpoint(trainer.args.output_dir)
    _tell_size(trainer)
    if checkpoint is None:
        trainer.run.truncate_metrics(0)
    else:
        recorded = verify_manifest(checkpoint)
        _check_conditions(trainer, checkpoint, recorded)
        trainer.parent_checkpoint = checkpoint.name
        with readable_state(checkpoint):
            state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        trainer.run.truncate_metrics(state.global_step, recorded.get("metrics"))
        if state.global_step >= state.max_steps:
            trainer._load_from_checkpoint(str(checkpoint))
            trainer.state = state
            return TrainOutput(state.global_step, math.nan, {})
    try:
        output = trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    except Interrupted:  # between updates, in an evaluation
        trainer.save_now()
        raise
    # What accelerate (autocast) puts in the place of `forward` is a closure over this model: in a
    # copy it would go on computing with the original.
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    vars(model).pop("forward", None)
    if trainer.stopped:
        state = trainer.state
        raise trainer.interruption(f"at step {state.global_step} of {state.max_steps}")
    return output


def _tell_size(trainer: GuardedTrainer) -> None:
    """Says beforehand what a large training writes: weights, and two moments of each."""
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    size = sum(p.numel() * (p.element_size() + 8) for p in trained)
    if size > LARGE and trainer.is_world_process_zero():
        log.info("%s: each checkpoint takes %s", trainer.args.output_dir, in_bytes(size))


def save_result(
    trainer: GuardedTrainer, directory: str | Path, files: Mapping[str, str] = {}
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
            for name, text in files.items():
                (Path(directory) / name).write_text(text, "utf-8")
    if trainer.is_world_process_zero():
        write_manifest(directory, {})
    trainer.accelerator.wait_for_everyone()


def _check_conditions(
    trainer: GuardedTrainer, checkpoint: Path, recorded: Mapping[str, Any]
) -> None:
    """Refuses a checkpoint of another number of processes or threads, or without random states."""
    current = trainer.provenance
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
        refuse_unless_inexact(
            f"{checkpoint}: {'; '.join(problems)}, so that the run would not go on exactly; "
            "launch it as before, or give another run.run_dir to begin anew"
        )
