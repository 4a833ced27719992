"""Behaviour cloning: (prompt, completion) → an actor that answers alike.

Only completions are learnt. Rows are token ids: what the actor is asked later is, token for token,
what it was trained on.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase, Trainer

from lactchain.config.settings import TrainingConfig
from lactchain.data.token_view import token_view
from lactchain.errors import DataError
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.models.shared_prefix import can_read_once, one_sequence, shared_length
from lactchain.trainers.base import GuardedTrainer, training_arguments
from lactchain.types import Action, Trajectory

IGNORED = -100
"""Label of tokens that are not learnt, as transformers has it."""

CloningRow = dict[str, list[int]]
"""`input_ids`, and `labels` that are `IGNORED` on the prompt."""


def cloning_rows(
    examples: Sequence[tuple[str, Action]],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
) -> tuple[list[CloningRow], Counter[str]]:
    """The rows to train on, and how many examples were dropped for which reason.

    Args:
        examples: observations and the completions to learn.
        max_length: longest prompt and completion together, in tokens; longer examples are dropped.

    Raises:
        DataError: there were examples, and none is left; or another tokenizer's model sampled one.
    """
    template.check_untemplated(examples, "examples")
    prompts = template.encode_batch([observation for observation, _ in examples])
    actions = [action for _, action in examples]
    completions = encode_completions(actions, tokenizer, "examples: row {}".format)
    rows, dropped = [], Counter()
    for prompt, completion in zip(prompts, completions, strict=True):
        if not completion:
            dropped["empty completion"] += 1
        elif max_length is not None and len(prompt) + len(completion) > max_length:
            dropped["over-long"] += 1
        else:
            labels = [IGNORED] * len(prompt) + completion
            rows.append({"input_ids": prompt + completion, "labels": labels})
    if examples and not rows:
        raise DataError(f"all {len(examples)} examples were dropped: {dict(dropped)}")
    return rows, dropped


class CompletionCollator:
    """Rows → a batch padded on the left, so that logits are wanted of the last columns alone.

    Args:
        share: the model `can_read_once`.

    Raises:
        ValueError: it pads on the right.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, share: bool = False) -> None:
        if tokenizer.padding_side != "left":
            raise ValueError(f"tokenizer: expected padding on the left of {tokenizer.name_or_path}")
        self._pad = DataCollatorForSeq2Seq(tokenizer)
        self._share = share

    def __call__(self, rows: Sequence[CloningRow]) -> dict[str, Tensor]:
        """The batch of these rows.

        Returns:
            `input_ids`, `attention_mask`, `position_ids` (B, L); `logits_to_keep` (K,), the last
            columns, one more than the longest completion has tokens; `labels` (B, K). What all
            prompts begin with is `prefix_ids` (P,) where that is worth it, and is left out of the
            others.
        """
        shared = self._shared_length(rows) if self._share else 0
        batch = self._pad([{name: ids[shared:] for name, ids in row.items()} for row in rows])
        mask, labels = batch["attention_mask"], batch["labels"]
        kept = 1 + int((labels != IGNORED).sum(dim=1).max())
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0) + shared
        # Columns, and not their number: of a slice torch multiplies each row by a copy of the
        # output layer where that layer is frozen (6 times slower with 32,768 tokens).
        columns = torch.arange(mask.shape[1])[-kept:]
        cut = {"position_ids": positions, "labels": labels[:, -kept:], "logits_to_keep": columns}
        if shared:
            cut["prefix_ids"] = torch.tensor(rows[0]["input_ids"][:shared])
        return {**batch, **cut}

    @staticmethod
    def _shared_length(rows: Sequence[CloningRow]) -> int:
        prompts = [
            row["input_ids"][: np.argmax(np.array(row["labels"]) != IGNORED)] for row in rows
        ]
        return shared_length(prompts, max(len(row["input_ids"]) for row in rows))


def as_one_sequence(batch: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """A batch of rows behind `prefix_ids` as the model takes it; the labels stay behind each other.

    The first label of a row is none, so that no row is predicted from the one before it.
    """
    mask = batch["attention_mask"].bool()
    texts = one_sequence(
        batch["prefix_ids"],
        batch["input_ids"],
        batch["position_ids"],
        mask[:, None].expand(-1, mask.shape[1], -1).tril(),
        batch["logits_to_keep"],
        dtype,
    )
    return {**texts, "labels": batch["labels"].flatten()[None]}


class BehaviorCloningTrainer(GuardedTrainer, Trainer):
    """Minimises the mean negative log-likelihood of the completions' tokens."""

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        """The library's loss of the model."""
        if "prefix_ids" in inputs:
            inputs = as_one_sequence(inputs, self.model.dtype)
        return super().compute_loss(model, inputs, *args, **kwargs)


def behavior_cloning_trainer(
    model: PreTrainedModel,
    rows: Sequence[CloningRow],
    tokenizer: PreTrainedTokenizerBase,
    settings: TrainingConfig,
    output_dir: str | Path,
    seed: int,
    *,
    report_to: Sequence[str] = (),
    **kwargs: Any,
) -> Trainer:
    """A trainer over the rows; start it with `lactchain.trainers.base.train`.

    Args: as of `training_arguments` and `GuardedTrainer`.
    """
    return BehaviorCloningTrainer(
        model=model,
        args=training_arguments(settings, output_dir, seed, report_to=report_to),
        data_collator=CompletionCollator(tokenizer, can_read_once(model)),
        train_dataset=rows,
        processing_class=tokenizer,
        **kwargs,
    )


def decision_rows(
    trajectories: Sequence[Trajectory],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
    only_final: bool = False,
) -> list[CloningRow]:
    """A row for each decision of recorded episodes, or for the last of each: completions verbatim.

    Raises:
        DataError: a decision does not fit the model; see `token_view`.
    """
    view = token_view(trajectories, template, tokenizer, max_length)
    rows = []
    for number in np.flatnonzero(view.last) if only_final else range(len(view)):
        ids, answered = view.mask(number)
        rows.append({"input_ids": ids, "labels": np.where(answered, ids, IGNORED).tolist()})
    return rows
