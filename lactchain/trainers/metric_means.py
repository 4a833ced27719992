"""The logging window of a trainer: what its metrics are means of, also in a run that goes on."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lactchain.storage.files import read_json, write_json


class WindowedTrainer:
    """Mixin before `transformers.Trainer`: metrics that are means over a window of updates.

    A checkpoint holds the window that it was written in, so that the curves of a run that goes on
    are those of one that was never cut.
    """

    parent_checkpoint: str | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sums: dict[str, Tensor] = {}

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

    def window(self) -> tuple[Tensor, dict[str, Tensor]]:
        """What the metrics of the logging window are made of so far: its loss, and `_sums`."""
        return torch.as_tensor(getattr(self, "_tr_loss", 0.0)).clone(), dict(self._sums)

    def resume_window(self) -> None:
        """Goes on with the logging window that the checkpoint was written in."""
        if self.parent_checkpoint is None:
            return
        stored = read_json(self._window_file(Path(self.args.output_dir, self.parent_checkpoint)))
        exact = {"dtype": torch.float64, "device": self.args.device}
        self._sums = {n: torch.tensor(s, **exact) for n, s in stored["sums"].items()}
        self._tr_loss = self._tr_loss.new_tensor(stored["loss"])
        self._globalstep_last_logged = stored["last_logged"]

    def _window_file(self, checkpoint: Path) -> Path:
        return checkpoint / f"window_{self.args.process_index}.json"

    def _save_rng_state(self, output_dir: str) -> None:
        """Saves what belongs to this process: random states, and its logging window."""
        super()._save_rng_state(output_dir)
        loss, sums = self.window()
        stored = {"last_logged": self._globalstep_last_logged, "loss": loss.item()}
        listed = {name: entry.tolist() for name, entry in sums.items()}
        write_json(self._window_file(Path(output_dir)), {**stored, "sums": listed})


def metric_key(name: str) -> str:
    """Our spelling of the name that transformers gives a metric; what has a slash stays.

    `eval_loss` → `eval/loss`, `loss` → `train/loss`, `train_runtime` → `time/train_runtime`.
    """
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    if name.startswith("train_"):  # the summary of a whole training
        return f"time/{name}"
    return name if "/" in name else f"train/{name}"
