"""The critic's regression on returns: episodes → values in return units.

`EpisodeTable` flattens episodes into rows (a text, a target) and knows how the targets follow from
the critic's own values: at the last state of episodes that were cut, and at each state where only a
share of what followed is taken as it came (`CriticConfig.trace`).
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import DataCollatorWithPadding, TrainingArguments

from lactchain.data.intervals import Interval, error_sums, explained_share
from lactchain.errors import DataError
from lactchain.functional.losses import regression_loss
from lactchain.models.critic import EmbeddingCritic
from lactchain.runs import distributed
from lactchain.storage.files import disk_errors
from lactchain.trainers.base import HeadedTrainer
from lactchain.trainers.closed_form import NUM_FOLDS, RidgeFolds, Solution
from lactchain.trainers.guards import readable_state
from lactchain.types import Trajectory

TARGETS_FILE = "targets.safetensors"
MOST_RENEWALS, SETTLED = 30, 1e-3
"""Bootstrapped targets are solved for so often at most, until no value moves by this share of their
spread."""


class EpisodeTable:
    """The decisions of episodes that have a target: N rows, on top of U different texts.

    A critic of chains has no value for the last state of a cut episode, in which no chain was
    chosen: there the last decision gives the bootstrap instead, and is not trained on.

    Attributes:
        inputs: token ids of the U different texts.
        row_inputs, row_episodes: which input each row reads, and of which episode it is, (N,).
    """

    def __init__(self, trajectories: Sequence[Trajectory], critic: EmbeddingCritic) -> None:
        of_chains, discount = critic.mode == "action_value", (critic.gamma, critic.discount_per)
        texts: dict[str, int] = {}
        rewards, discounts, inputs, final, is_cut = [], [], [], [], []
        for episode in (trajectory.decisions() for trajectory in trajectories):
            read = episode.observations
            chains = [action.text for action in episode.actions] if of_chains else None
            read = critic.texts(read[:-1] if of_chains else read, chains)
            numbers = [texts.setdefault(text, len(texts)) for text in read]
            rows = len(episode) - (of_chains and not episode.terminated)
            if rows <= 0:
                continue
            rewards.append(torch.from_numpy(episode.chain_rewards(*discount))[:rows].double())
            discounts.append(torch.from_numpy(episode.chain_discounts(*discount))[:rows].double())
            inputs.append(torch.tensor(numbers[:rows]))
            final.append(numbers[-1])
            is_cut.append(not episode.terminated)
        if not rewards:
            raise ValueError("expected at least one decision with a target, got none")
        # (T, E): the decisions of E episodes side by side, those of one time in a row.
        self._rewards, self._discounts = pad_sequence(rewards), pad_sequence(discounts)
        self._is_row = pad_sequence([torch.ones(len(row), dtype=bool) for row in rewards])
        self._final, self._is_cut = torch.tensor(final), torch.tensor(is_cut)
        self.row_inputs = pad_sequence(inputs)[self._is_row]
        self.row_episodes = self._is_row.nonzero()[:, 1]
        self.inputs = critic.tokenize(list(texts))

    def needs_values(self, trace: float = 1.0) -> bool:
        """Whether the targets depend on the critic."""
        return trace < 1 or bool(self._is_cut.any())

    def targets(self, values: Tensor, trace: float = 1.0) -> Tensor:
        """λ-returns of the rows, (N,), from the inputs' values (U,), which cut episodes end with.

        Of what follows a decision, a share `trace` is what came of it, and the rest the value of
        the state it led to; 1 gives Monte-Carlo returns. Source: Watkins 1989; Sutton & Barto 2018,
        12.1.
        """
        following = values.double()[self._final] * self._is_cut
        here = torch.zeros_like(self._rewards).masked_scatter(
            self._is_row, values.double()[self.row_inputs]
        )
        returns = torch.empty_like(self._rewards)
        for t in reversed(range(len(returns))):
            returns[t] = self._rewards[t] + self._discounts[t] * following
            led_to = trace * returns[t] + (1 - trace) * here[t]
            following = torch.where(self._is_row[t], led_to, following)
        return returns[self._is_row]

    def scores(self, values: Tensor) -> dict[str, float]:
        """How well the values of the inputs (U,) predict Monte-Carlo returns, over all rows."""
        returns, predicted = self.targets(values), values.double()[self.row_inputs]
        squared_error = (predicted - returns).square().mean()
        variance = returns.var(correction=0)
        return {
            "r2": (1 - squared_error / variance).item() if variance > 0 else math.nan,
            "rmse": squared_error.sqrt().item(),
            "value_mean": predicted.mean().item(),
            "return_mean": returns.mean().item(),
            "return_std": variance.sqrt().item(),
        }

    def error_sums(self, values: Tensor) -> np.ndarray:
        """Sums in each of E episodes, (E, 4), of which the same scores are made: `intervals`."""
        returns, predicted = self.targets(values), values.double()[self.row_inputs]
        sums = torch.zeros(*self._is_row.shape, 4, dtype=torch.float64)
        sums[self._is_row] = torch.from_numpy(error_sums(predicted.numpy(), returns.numpy()))
        return sums.sum(dim=0).numpy()


def return_scale(trajectories: Sequence[Trajectory], gamma: float, discount_per: str) -> float:
    """Root mean square of the returns, 1 if all are 0; `DataError` where there are no chains."""
    returns = np.concatenate([t.decisions().returns(gamma, discount_per) for t in trajectories])
    if not len(returns):
        raise DataError(
            "trajectories: expected completions that are chains, got none; play constrained "
            "(actor.decoding), or clone first"
        )
    return float(np.sqrt(np.mean(returns**2))) or 1.0


def split_episodes(
    trajectories: Sequence[Trajectory], eval_fraction: float, seed: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Episodes to train on and episodes held out at random; whole ones, since rows correlate."""
    order = np.random.default_rng(seed).permutation(len(trajectories))
    held_out = int(len(trajectories) * eval_fraction)
    held, kept = ([trajectories[i] for i in part] for part in np.split(order, [held_out]))
    return kept, held


class RegressionRows(Dataset):
    """Rows of token ids, target and weight, whose targets can be renewed between epochs.

    The n decisions of one input are one row: Σ_i (v − R_i)² = n (v − mean R)² + const, so that with
    weight n / mean n the loss over all decisions is kept, exactly but for a constant.
    """

    def __init__(self, table: EpisodeTable) -> None:
        self.inputs = table.inputs
        self._input_of, self._group = table.row_inputs.unique(return_inverse=True)
        self._counts = self._group.bincount().double()
        self.weights = (self._counts / self._counts.mean()).float()
        self.targets = torch.full((len(self),), math.nan)

    def renew(self, row_targets: Tensor) -> None:
        """Takes new targets, (N,) for the decisions of the table."""
        sums = torch.zeros(len(self), dtype=torch.double).index_add(0, self._group, row_targets)
        self.targets = (sums / self._counts).float()

    def __len__(self) -> int:
        return len(self._input_of)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "input_ids": self.inputs[self._input_of[index]],
            "target": self.targets[index].item(),
            "weight": self.weights[index].item(),
        }


class CriticTrainer(HeadedTrainer):
    """Fits values to returns, R_t = r_t + γ^k R_{t+1} (`Trajectory.returns`), or to λ-returns.

    Where episodes were cut, or λ is below 1, targets depend on the critic: they are computed anew
    at the beginning of each epoch, and kept in every checkpoint.

    Metrics: `train/loss`, in units of the critic's `value_scale`; `eval/r2` and `eval/rmse` against
    the Monte-Carlo returns of held-out episodes; `eval/value_mean`, `eval/return_mean` and
    `eval/return_std`. All but the loss are in return units.
    """

    def __init__(
        self,
        critic: EmbeddingCritic,
        args: TrainingArguments,
        table: EpisodeTable,
        *,
        eval_table: EpisodeTable | None = None,
        **kwargs: Any,
    ) -> None:
        self.critic = critic
        self.table = table
        self._trace = critic.settings.trace
        self._needs_values = table.needs_values(self._trace)
        collator = DataCollatorWithPadding(critic.tokenizer)
        rows = RegressionRows(table)
        super().__init__(
            critic, args, collator, train_dataset=rows, eval_dataset=eval_table, **kwargs
        )
        self._targets_epoch = -1

    def loss_of(self, model: nn.Module, inputs: dict[str, Tensor], shares: Tensor) -> Tensor:
        """Weighted mean loss of B rows, in units of the critic's scale.

        So neither learning rate nor gradient clipping depend on what a reward of 1 stands for.
        """
        values = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        scale = self.critic.value_scale
        losses = regression_loss(values / scale, inputs["target"] / scale, "mse")
        return shares[0] * (inputs["weight"] * losses).mean()

    def num_items(self, inputs: dict[str, Tensor]) -> Tensor:
        """Rows."""
        return torch.tensor([len(inputs["target"])], device=inputs["target"].device)

    def on_epoch_begin(self, args, state, control, **kwargs) -> None:
        """Computes the targets of an epoch, unless a checkpoint within it brought them."""
        epoch = int(state.epoch or 0)
        if epoch == self._targets_epoch:
            return
        if self._needs_values or self._targets_epoch < 0:
            self.train_dataset.renew(self._targets(self.table, self._trace))
        self._targets_epoch = epoch

    def _targets(self, table: EpisodeTable, trace: float = 1.0) -> Tensor:
        """The targets of a table's rows (N,) by the critic as it is, if they ask for it."""
        texts = table.inputs
        values = self.values(texts) if table.needs_values(trace) else torch.zeros(len(texts))
        return table.targets(values, trace)

    def solve(self) -> Solution:
        """Solves for the head on the trunk as it is, and puts it into the critic.

        Where targets depend on the critic, they are renewed by the values of each solution: what
        comes of it depends on trunk and episodes alone. All processes get the head of the first.
        """
        features = self.values(self.table.inputs, as_features=True)
        found = distributed.of_main(self._solution(features) if distributed.is_main() else None)
        self.critic.set_head(found.weight, found.offset)
        return found

    def _solution(self, features: Tensor) -> Solution:
        table, values = self.table, torch.zeros(len(features))
        folds = RidgeFolds(features, table.row_inputs, table.row_episodes % NUM_FOLDS)
        for _ in range(MOST_RENEWALS if table.needs_values(self._trace) else 1):
            targets, before = table.targets(values, self._trace), values
            found = folds.solve(targets)
            # What is bootstrapped from was perhaps never answered, and is a guess without bounds.
            values = found.values(features).clamp(targets.min(), targets.max())
            if (values - before).abs().max() <= SETTLED * values.std():
                break
        return found

    @torch.no_grad()
    def values(self, inputs: Sequence[Sequence[int]], **asked: bool) -> Tensor:
        """Values (U,) of U tokenised texts on the CPU, shared out among the processes.

        `EmbeddingCritic.forward` knows what is `asked`, such as `as_features`, which gives (U, D).
        """
        order = sorted(range(len(inputs)), key=lambda i: len(inputs[i]))
        loader = self.get_test_dataloader([{"input_ids": inputs[i]} for i in order])
        self.model.eval()
        found = []
        # Each pass through a DataLoader draws a number, and a run that resumes from a checkpoint
        # does not repeat the pass that came after it.
        with torch.random.fork_rng(devices=[]):
            for batch in loader:
                self.stop_if_asked()
                found.append(self.accelerator.gather_for_metrics(self.model(**batch, **asked)))
        outputs = torch.cat(found).float().cpu()
        return outputs[torch.tensor(order).argsort()]

    def evaluate(self, table: EpisodeTable | None = None) -> dict[str, float]:
        """Scores the critic on episodes, the held-out ones if none are given; logs and returns."""
        table = table or self.eval_dataset
        values = self.values(table.inputs)
        self.eval_sums = table.error_sums(values)
        metrics = {f"eval_{name}": score for name, score in table.scores(values).items()}
        self.log(metrics)
        return metrics

    def ceiling(self) -> tuple[float, Interval]:
        """R2 of all returns that no critic of these texts exceeds (`explained_share`), interval."""
        texts: dict[tuple[int, ...], int] = {}
        returns, groups, units, num_episodes = [], [], [], 0
        for table in (self.table, self.eval_dataset):
            returns.append(self._targets(table))
            numbers = [texts.setdefault(tuple(ids), len(texts)) for ids in table.inputs]
            groups.append(torch.tensor(numbers)[table.row_inputs])
            units.append(table.row_episodes + num_episodes)
            num_episodes = int(units[-1].max()) + 1
        return explained_share(*(torch.cat(parts).numpy() for parts in (returns, groups, units)))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save and self._needs_values:
            directory = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            targets, epoch = self.train_dataset.targets, str(self._targets_epoch)
            with disk_errors(directory):
                save_file({"targets": targets}, directory / TARGETS_FILE, metadata={"epoch": epoch})

    def _load_from_checkpoint(self, checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(checkpoint, model)
        if self._needs_values:
            targets = Path(checkpoint) / TARGETS_FILE
            with readable_state(checkpoint), safe_open(targets, framework="pt") as file:
                self.train_dataset.targets = file.get_tensor("targets")
                self._targets_epoch = int(file.metadata()["epoch"])
