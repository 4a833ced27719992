"""What happens between the steps of a training: checks, manifests, records, a progress bar."""

from pathlib import Path
from typing import Any

from transformers import ProgressCallback, TrainerCallback

from lactchain.checkpoints import prune_checkpoints
from lactchain.manifests import write_manifest


class GuardCallback(TrainerCallback):
    """Has updates checked before they are taken, stops if so asked, makes checkpoints valid."""

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
        if self.trainer.stop_asked():
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

    def on_save(self, args, state, control, **kwargs) -> None:
        """Declares a checkpoint valid once all processes wrote their part; then prunes old ones."""
        trainer = self.trainer
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        trainer.accelerator.wait_for_everyone()
        if trainer.is_world_process_zero():
            named = trainer.model.named_parameters()
            facts = {
                "parent": trainer.parent_checkpoint,
                "global_step": state.global_step,
                "max_steps": state.max_steps,
                "trainable": [name for name, parameter in named if parameter.requires_grad],
                **trainer.provenance,
            }
            write_manifest(checkpoint, facts)
            prune_checkpoints(args.output_dir, trainer.keep_checkpoints)
        trainer.accelerator.wait_for_everyone()
        trainer.parent_checkpoint = checkpoint.name


class ProgressBarCallback(ProgressCallback):
    """A bar that does not print every record: they are in metrics.jsonl."""

    def on_log(self, args, state, control, logs: dict[str, float] | None = None, **kwargs) -> None:
        """Shows the loss at the end of the bar."""
        if self.training_bar is not None and logs and "loss" in logs:
            self.training_bar.set_postfix_str(f"loss {float(logs['loss']):.3g}")


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
