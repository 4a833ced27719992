"""What a trainer is made of: its arguments, its base class, how it starts and what it leaves."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import TrainerState, TrainingArguments

from lactchain.config.settings import TrainingConfig
from lactchain.errors import ConfigError, Interrupted
from lactchain.models.runtime import device
from lactchain.runs import distributed
from lactchain.runs.process import refuse_unless_inexact
from lactchain.storage.checkpoints import latest_checkpoint
from lactchain.storage.files import disk_errors
from lactchain.storage.manifests import MANIFEST, read_manifest, write_manifest
from lactchain.trainers.guards import GuardedTrainer, readable_state

NEVER = 10**9
"""A number of updates that no run reaches."""

OURS = (
    "push_to_hub", "hub_", "deepspeed", "fsdp", "parallelism_config", "trackio_", "bf16", "fp16",
    "accelerator_config", "auto_find_batch_size", "enable_jit_checkpoint", "eval_on_start",
    "eval_strategy", "ignore_data_skip", "resume_from_checkpoint", "save_only_model",
    "save_strategy", "save_total_limit", "train_sampling_strategy", "use_liger_kernel",
)  # fmt: skip
"""Beginnings of arguments that `training.extra` may not hold beside those that are set here: they
reach out of the run, or a run would not go on as it began, or learn from other batches."""
DEFAULTS = {
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,  # below 1 transformers takes it for a share of the steps
    "optim": "adamw_torch",
    "logging_steps": 10,
    "disable_tqdm": False,
}


def training_arguments(
    settings: TrainingConfig, output_dir: str | Path, seed: int, *, report_to: Iterable[str] = ()
) -> TrainingArguments:
    """The arguments of `transformers.Trainer` for our settings on the device at hand.

    Whether it computes in mixed precision is accelerate's to say (`configs/accelerate`).

    Args:
        output_dir: folder of the `checkpoint-N/`.
        report_to: trackers beside the local metrics.jsonl.

    Raises:
        ConfigError: an argument in `settings.extra` is not free, or transformers refuses its value.
    """
    on_cuda = device().type == "cuda"
    given: dict[str, Any] = {
        "output_dir": str(output_dir),
        "seed": seed,
        "data_seed": seed,
        "num_train_epochs": settings.num_epochs,
        "max_steps": settings.max_steps,
        "learning_rate": settings.learning_rate,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "activation_checkpointing": settings.gradient_checkpointing,
        "save_steps": settings.save_every_updates or NEVER,
        "logging_nan_inf_filter": False,
        "report_to": list(report_to),
        "use_cpu": not on_cuda,
        "dataloader_pin_memory": on_cuda,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
        "ddp_timeout": int(distributed.timeout.total_seconds()),
    }
    known = TrainingArguments.__dataclass_fields__
    for name in settings.extra:
        if name not in known or name in given or name.startswith(OURS):
            raise ConfigError(
                f"training.extra.{name}: expected an argument of TrainingArguments that stays in"
                " the run, and that neither `training` nor the trainer sets"
            )
    try:
        arguments = TrainingArguments(**DEFAULTS | given | settings.extra)
        _try_steps(arguments)
    except Exception as error:  # noqa: BLE001  - theirs are of every kind (transformers 5.23)
        raise ConfigError(f"training.extra: refused by transformers: {error}") from error
    # Else several GPUs that a process sees share each batch (nn.DataParallel), of another size.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _try_steps(arguments: TrainingArguments) -> None:
    """Makes optimiser and schedule for one number: what they refuse shows before the training."""
    for name in ("max_grad_norm", "weight_decay"):
        if not isinstance(value := getattr(arguments, name), int | float) or not value >= 0:
            raise ValueError(f"{name}: expected a number of at least 0, got {value!r}")
    kind, settings = transformers.Trainer.get_optimizer_cls_and_kwargs(arguments)
    optimizer = kind([torch.nn.Parameter(torch.zeros(1))], **settings)
    transformers.get_scheduler(
        arguments.lr_scheduler_type,
        optimizer,
        num_warmup_steps=1,
        num_training_steps=10,
        scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,
    )


class RunTrainer(GuardedTrainer):
    """Base of the trainers whose `compute_loss` returns the mean over its batch."""

    loss_is_scaled_for_ga = False


class UpdateMeanTrainer(RunTrainer):
    """Base of the trainers whose loss is made of means over all items of an update.

    Which rows share a micro-batch or a process then makes no difference.
    """

    loss_is_scaled_for_ga = True

    def num_items(self, inputs: dict[str, Tensor]) -> Tensor:
        """Over how many rows or tokens of a batch each mean of the loss is, (K,)."""
        raise NotImplementedError

    def loss_of(self, model: nn.Module, inputs: dict[str, Tensor], shares: Tensor) -> Tensor:
        """What a batch adds to the loss of its update.

        Its means weigh `shares` (K,) in those over the update; 1 outside of one.
        """
        raise NotImplementedError

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], **asked: Any) -> Tensor:
        """As `transformers.Trainer` asks for it, in an update by `num_items_in_batch`."""
        items = self.num_items(inputs)
        of_update = asked.get("num_items_in_batch")
        return self.loss_of(model, inputs, items / (items if of_update is None else of_update))

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


def train(trainer: GuardedTrainer) -> None:
    """Trains from the newest valid checkpoint in the trainer's folder, or from the start.

    Raises:
        Interrupted: a signal asked to stop; the state is saved.
        NonFiniteError: see `GuardedTrainer.check_update`.
        DataError: the checkpoint does not fit this launch.
    """
    checkpoint = latest_checkpoint(trainer.args.output_dir)
    if checkpoint is None:
        trainer.run.truncate_metrics(0)
    else:
        recorded = read_manifest(checkpoint / MANIFEST)
        _check_conditions(trainer, checkpoint, recorded)
        trainer.parent_checkpoint = checkpoint.name
        with readable_state(checkpoint):
            state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        trainer.run.truncate_metrics(state.global_step, recorded.get("metrics"))
        if state.global_step >= state.max_steps:
            trainer._load_from_checkpoint(str(checkpoint))
            trainer.state = state
            return
    try:
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
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


def save_result(
    trainer: GuardedTrainer, directory: str | Path, files: Mapping[str, str] = {}
) -> None:
    """Writes the trained weights into a folder that other runs can start from, its manifest last.

    `files` are further texts of the folder, by name. `DiskError` where the disk is full.
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
    """Refuses a checkpoint of other processes, threads or precision, or without random states."""
    current = trainer.provenance
    rank = trainer.args.process_index
    random_states = f"rng_state_{rank}.pth" if trainer.args.world_size > 1 else "rng_state.pth"
    problems = [
        f"{name} was {recorded[name]}, is {current[name]}"
        for name in ("world_size", "threads", "dtype")
        if recorded[name] != current[name]
    ]
    if not (checkpoint / random_states).is_file():
        problems.append(f"{random_states} is missing")
    if problems:
        refuse_unless_inexact(
            f"{checkpoint}: {'; '.join(problems)}, so that the run would not go on exactly; "
            "launch it as before, or give another run.run_dir to begin anew"
        )
