"""SimPO: preference pairs → a better actor, without a reference model.

Rows are token ids, not text: what was sampled need not be the canonical tokenisation of what it
reads as, and re-tokenising it would train on other tokens than the policy produced.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from lactchain.errors import DataError
from lactchain.functional.policy_losses import simpo_loss
from lactchain.functional.tokens import masked_mean, pad, token_logprobs
from lactchain.jobs import TrainSimPOConfig
from lactchain.models.loading import load_actor
from lactchain.models.prompting import PromptTemplate
from lactchain.run import Run, read_metrics
from lactchain.settings import SimPOConfig
from lactchain.trainers.base import RunTrainer, encode_completions, training_arguments
from lactchain.types import Action, ChainGrammar, PreferencePair

COLLAPSE_NATS = 1.0
"""A fall of the average log-probability of chosen tokens that is worth a warning."""

log = logging.getLogger(__name__)

PreferenceRow = dict[str, list[int]]
"""`prompt_ids`, `chosen_ids` and `rejected_ids`; completions end with the end-of-sequence token."""


def preference_rows(
    pairs: Sequence[PreferencePair],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
) -> tuple[list[PreferenceRow], Counter[str]]:
    """The rows to train on, and how many pairs were dropped for which reason.

    Args:
        template: makes prompts of observations.
        max_length: longest prompt and completion together, in tokens. Longer pairs are dropped,
            not cut: a completion cut to nothing is a mean over no tokens.

    Raises:
        DataError: there were pairs, and none is left.
    """
    columns = {
        "prompt_ids": template.encode_batch([pair.prompt for pair in pairs]),
        "chosen_ids": encode_completions(
            [Action(pair.chosen, pair.chosen_token_ids) for pair in pairs], tokenizer
        ),
        "rejected_ids": encode_completions(
            [Action(pair.rejected, pair.rejected_token_ids) for pair in pairs], tokenizer
        ),
    }
    rows, dropped = [], Counter()
    for ids in zip(*columns.values(), strict=True):
        row = dict(zip(columns, ids, strict=True))
        reason = drop_reason(row, max_length)
        if reason is None:
            rows.append(row)
        else:
            dropped[reason] += 1
    if pairs and not rows:
        raise DataError(f"all {len(pairs)} pairs were dropped: {dict(dropped)}")
    return rows, dropped


def drop_reason(row: PreferenceRow, max_length: int | None = None) -> str | None:
    """Why a row cannot be trained on, or None."""
    completions = (row["chosen_ids"], row["rejected_ids"])
    if not row["prompt_ids"]:
        return "empty prompt"
    if not all(completions):
        return "empty completion"
    if completions[0] == completions[1]:
        return "equal completions"
    longest = len(row["prompt_ids"]) + max(map(len, completions))
    if max_length is not None and longest > max_length:
        return "over-long"
    return None


class PreferenceCollator:
    """Rows → right-padded `input_ids`, `attention_mask`, `completion_mask`, each (B, 2, L).

    The middle axis is (chosen, rejected). Padding on the right keeps position 0 at the first token;
    a causal model never looks at it.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[PreferenceRow]) -> dict[str, Tensor]:
        """The batch of B rows."""
        ids, attention, completion = [], [], []
        for row in rows:
            prompt = row["prompt_ids"]
            for answer in (row["chosen_ids"], row["rejected_ids"]):
                ids.append([*prompt, *answer])
                attention.append([1] * len(ids[-1]))
                completion.append([0] * len(prompt) + [1] * len(answer))
        return {
            "input_ids": pad(ids, self.pad_token_id).unflatten(0, (-1, 2)),
            "attention_mask": pad(attention, 0).unflatten(0, (-1, 2)),
            "completion_mask": pad(completion, 0).unflatten(0, (-1, 2)),
        }


class SimPOTrainer(RunTrainer):
    """Trains a causal language model on preference pairs (Meng, Xia & Chen 2024, equation 6).

    Departures: an optional negative log-likelihood of the chosen answers, the α of CPO (Xu et al.
    2024, equation 5), weighted by `settings.nll_weight`.

    Metrics, means over the logging window: `rewards/chosen`, `rewards/rejected`, `rewards/margins`
    (β times average log-probabilities and their difference), `rewards/accuracies`, `logps/chosen`,
    `logps/rejected` (average per token), `nll_loss`, `lengths/chosen`, `lengths/rejected` (tokens).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        rows: Sequence[PreferenceRow],
        tokenizer: PreTrainedTokenizerBase,
        settings: SimPOConfig,
        *,
        run: Run,
        eval_rows: Sequence[PreferenceRow] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            data_collator=PreferenceCollator(tokenizer.pad_token_id),
            train_dataset=rows,
            eval_dataset=eval_rows,
            processing_class=tokenizer,
            run=run,
            **kwargs,
        )
        self.settings = settings

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """Mean loss of B pairs, from one forward pass over their 2B answers."""
        logprobs, mask = completion_logprobs(
            model, **{name: tensor.flatten(0, 1) for name, tensor in inputs.items()}
        )
        chosen_logps, rejected_logps = masked_mean(logprobs, mask, dim=1).unflatten(0, (-1, 2)).T
        losses, metrics = simpo_loss(
            chosen_logps, rejected_logps, self.settings.beta, self.settings.target_margin
        )
        nll = -masked_mean(logprobs[::2], mask[::2])
        chosen_lengths, rejected_lengths = mask.sum(dim=1).unflatten(0, (-1, 2)).T
        self.record(
            **metrics,
            **{"logps/chosen": chosen_logps, "logps/rejected": rejected_logps, "nll_loss": nll},
            **{"lengths/chosen": chosen_lengths, "lengths/rejected": rejected_lengths},
        )
        return losses.mean() + self.settings.nll_weight * nll


def completion_logprobs(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor, completion_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens from the batch's first completion token on, and their mask.

    The vocabulary is projected only there, not on the prompt, which is most of the batch.

    Returns:
        (B, L - start) log-probabilities in float32, and which of them belong to completions.
    """
    start = int(completion_mask.any(dim=0).int().argmax())
    predicting = torch.arange(start - 1, input_ids.shape[1] - 1, device=input_ids.device)
    logits = model(
        input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=predicting
    ).logits
    return token_logprobs(logits, input_ids[:, start:]), completion_mask[:, start:].bool()


def simpo_trainer(
    pairs: Sequence[PreferencePair], config: TrainSimPOConfig, grammar: ChainGrammar, run: Run
) -> tuple[SimPOTrainer, Counter[str]]:
    """The trainer of a stage, and how many pairs could not be trained on, by reason."""
    model, tokenizer = load_actor(config.actor, trainable=True)
    template = PromptTemplate.for_grammar(tokenizer, config.actor.strategy, grammar)
    rows, dropped = preference_rows(pairs, template, tokenizer)
    trainer = SimPOTrainer(
        model,
        training_arguments(
            config.training,
            run.path("checkpoints"),
            config.run.seed,
            report_to=config.run.report_to,
        ),
        rows,
        tokenizer,
        config.simpo,
        run=run,
        keep_checkpoints=config.training.keep_checkpoints,
    )
    return trainer, dropped


def warn_if_collapsed(run: Run) -> None:
    """Says so when training made the chosen answers much less probable than they were."""
    chosen = [
        record["logps/chosen"] for record in read_metrics(run.directory) if "logps/chosen" in record
    ]
    if len(chosen) > 1 and chosen[-1] < chosen[0] - COLLAPSE_NATS:
        log.warning(
            "logps/chosen fell from %.2f to %.2f a token: the actor is collapsing. Lower "
            "training.learning_rate, or raise simpo.nll_weight",
            chosen[0],
            chosen[-1],
        )
