"""SimPO: preference pairs → a better actor, without a reference model.

Rows are token ids, not text: what was sampled need not be the canonical tokenisation of what it
reads as, and re-tokenising it would train on other tokens than the policy produced.
"""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from lactchain.config.settings import SimPOConfig
from lactchain.data.sources import pair_of
from lactchain.errors import ConfigError, DataError
from lactchain.functional.policy_losses import simpo_loss
from lactchain.functional.tokens import masked_mean, pad, token_logprobs
from lactchain.models.families import attention_masks, check_family
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.models.runtime import evaluating
from lactchain.models.shared_prefix import READ_ONCE, can_read_once, one_sequence, shared_length
from lactchain.runs.run import Run, read_metrics
from lactchain.trainers.base import UpdateMeanTrainer
from lactchain.types import Action, PreferencePair

COLLAPSE_NATS = 1.0
"""A fall of the average log-probability of chosen tokens that is worth a warning."""

NUM_SHOWN = 512
"""Of so many pairs it is kept how probable they are after a training; the pass takes seconds."""

SHARED, CHOSEN, REJECTED, PADDING = range(4)
"""The parts of a pair's sequence."""

log = logging.getLogger(__name__)

PreferenceRow = dict[str, Any]
"""Lists of token ids, by the names of `IDS`; completions end with the end-of-sequence token. And
perhaps `sampled_logps`, the two log-probabilities under which chosen and rejected were sampled,
averaged over their tokens; NaN where they are not known. And `pair`, its place among the pairs."""

IDS = ("prompt_ids", "chosen_ids", "rejected_ids")


def preference_rows(
    pairs: Sequence[PreferencePair],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
) -> tuple[list[PreferenceRow], Counter[str]]:
    """The rows to train on, and how many pairs were dropped for which reason.

    Args:
        max_length: longest prompt and completion together, in tokens. Longer pairs are dropped,
            not cut: a completion cut to nothing is a mean over no tokens.

    Raises:
        DataError: there were pairs, and none is left; or another tokenizer's model sampled one.
    """
    for side in ("chosen", "rejected"):
        said = ((p.prompt, Action(getattr(p, side), p.chosen_token_ids)) for p in pairs)
        template.check_untemplated(said, f"pairs: {side}")
    columns: dict[str, list[Any]] = {
        "prompt_ids": template.encode_batch([pair.prompt for pair in pairs])
    }
    for side in ("chosen", "rejected"):
        actions = [Action(getattr(p, side), getattr(p, f"{side}_token_ids")) for p in pairs]
        name = f"pairs: row {{}}, {side} completion".format
        columns[f"{side}_ids"] = encode_completions(actions, tokenizer, name)
    columns["sampled_logps"] = [
        [_mean(pair.chosen_logprobs), _mean(pair.rejected_logprobs)] for pair in pairs
    ]
    columns["pair"] = [*range(len(pairs))]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    reasons = [drop_reason(row, max_length) for row in rows]
    dropped = Counter(reason for reason in reasons if reason is not None)
    kept = [row for row, reason in zip(rows, reasons, strict=True) if reason is None]
    if pairs and not kept:
        raise DataError(f"all {len(pairs)} pairs were dropped: {dict(dropped)}")
    return kept, dropped


def _mean(logprobs: Sequence[float]) -> float:
    return sum(logprobs) / len(logprobs) if logprobs else math.nan


def _tokenised(
    rows: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> Sequence[PreferenceRow]:
    if not len(rows) or "prompt_ids" in rows[0]:
        return rows
    pairs = [pair_of(row, f"rows: row {number}") for number, row in enumerate(rows)]
    return preference_rows(pairs, PromptTemplate(tokenizer), tokenizer)[0]


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
    """Rows → one sequence per pair: the prompt once, then the chosen and the rejected completion.

    Both completions begin with a copy of the prompt's last token at its place, so that every token
    is predicted from the one before it. `branch` says who sees whom (`seen_in_branch`): SHARED
    prompt, CHOSEN, REJECTED, PADDING. The prompt is most of a batch, and is paid for once instead
    of twice.

    All tensors are (B, L), padded on the right: `input_ids`, `position_ids`, `branch`, and
    `completion_mask`, which marks the tokens of both completions. What all prompts begin with is
    `prefix_ids` (P,) where that is worth it, and is left out of the others.

    Args:
        share: the model `can_read_once`.
    """

    def __init__(self, pad_token_id: int, share: bool = False) -> None:
        self.pad_token_id = pad_token_id
        self.share = share

    def __call__(self, rows: Sequence[PreferenceRow]) -> dict[str, Tensor]:
        """The batch of B rows."""
        longest = 1 + max(sum(len(row[name]) for name in IDS) for row in rows)
        prompts = [row["prompt_ids"] for row in rows]
        before = shared_length(prompts, longest) if self.share else 0
        ids, positions, branches, completions = [], [], [], []
        for row in rows:
            *shared, last = row["prompt_ids"][before:]
            start, chosen, rejected = len(shared), row["chosen_ids"], row["rejected_ids"]
            ids.append([*shared, last, *chosen, last, *rejected])
            behind = before + start
            first = range(before, behind + 1 + len(chosen))
            positions.append([*first, *range(behind, behind + 1 + len(rejected))])
            branches.append(
                [SHARED] * start + [CHOSEN] * (1 + len(chosen)) + [REJECTED] * (1 + len(rejected))
            )
            completions.append([0] * start + [0] + [1] * len(chosen) + [0] + [1] * len(rejected))
        batch = {
            "input_ids": pad(ids, self.pad_token_id),
            "position_ids": pad(positions, 0),
            "branch": pad(branches, PADDING),
            "completion_mask": pad(completions, 0),
        }
        if "sampled_logps" in rows[0]:
            batch["sampled_logps"] = torch.tensor([row["sampled_logps"] for row in rows])
        if before:
            batch["prefix_ids"] = torch.tensor(rows[0]["prompt_ids"][:before])
        return batch


def seen_in_branch(branch: Tensor) -> Tensor:
    """Which tokens each token sees, (B, L, L): those before it in its branch and the prompt."""
    own = branch[:, :, None] == branch[:, None, :]
    return (own | (branch == SHARED)[:, None, :]).tril()


class SimPOTrainer(UpdateMeanTrainer):
    """Trains a causal language model on preference pairs (Meng, Xia & Chen 2024, equation 6).

    Departures: an optional negative log-likelihood of the chosen completions, the α of CPO (Xu et
    al. 2024, equation 5), weighted by `settings.nll_weight`.

    Rows are those of `preference_rows`, or of any data set with TRL's columns `prompt`, `chosen`
    and `rejected`, under the tokenizer's chat template.

    Metrics, means over the logging window: `rewards/chosen`, `rewards/rejected`, `rewards/margins`
    (β times average log-probabilities and their difference), `rewards/accuracies`, `logps/chosen`,
    `logps/rejected` (average per token), `gains/chosen`, `gains/rejected` (by how much these exceed
    what they were when they were sampled), `nll_loss`, `lengths/chosen`, `lengths/rejected`
    (tokens).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        rows: Sequence[Mapping[str, Any]],
        tokenizer: PreTrainedTokenizerBase,
        settings: SimPOConfig,
        **kwargs: Any,
    ) -> None:
        attention = model.config._attn_implementation
        if attention not in ("sdpa", "eager", READ_ONCE):
            raise ConfigError(
                f"attention: expected sdpa or eager, which take a mask per pair, got {attention}"
            )
        check_family(model)
        super().__init__(
            model=model,
            args=args,
            data_collator=PreferenceCollator(tokenizer.pad_token_id, can_read_once(model)),
            train_dataset=_tokenised(rows, tokenizer),
            processing_class=tokenizer,
            **kwargs,
        )
        self.settings = settings

    @torch.no_grad()
    def completion_logprobs(self, rows: Sequence[PreferenceRow]) -> Tensor:
        """Log-probabilities (B, 2) of chosen and rejected of B rows, summed over their tokens."""
        batch = self._prepare_inputs(self.data_collator(rows))
        with evaluating(self.model), self.compute_loss_context_manager():
            logprobs, branch = self._logprobs(self.model, batch)
        sums = [
            logprobs.double().masked_fill(branch != side, 0).sum(dim=1)
            for side in (CHOSEN, REJECTED)
        ]
        return torch.stack(sums, dim=1)

    def logprobs_after(self, batch_size: int) -> dict[int, tuple[float, float]]:
        """What `completion_logprobs` are of the first pairs, by their places."""
        rows = self.train_dataset[:NUM_SHOWN]
        batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
        sums = torch.cat([self.completion_logprobs(batch) for batch in batches]).tolist()
        return {row["pair"]: tuple(both) for row, both in zip(rows, sums, strict=True)}

    def loss_of(self, model: nn.Module, inputs: dict[str, Tensor], shares: Tensor) -> Tensor:
        """Mean loss of B pairs, or their share of an update's, from one forward pass."""
        logprobs, branch = self._logprobs(model, inputs)
        chosen, rejected = branch == CHOSEN, branch == REJECTED
        chosen_logps = masked_mean(logprobs, chosen, dim=1)
        rejected_logps = masked_mean(logprobs, rejected, dim=1)
        losses, metrics = self.pair_losses(chosen_logps, rejected_logps)
        nll = -masked_mean(logprobs, chosen)
        if "sampled_logps" in inputs:
            gains = torch.stack([chosen_logps, rejected_logps]) - inputs["sampled_logps"].T
            known = gains.isfinite()
            gained = {"gains/chosen": gains[0, known[0]], "gains/rejected": gains[1, known[1]]}
            self.record(**gained)
        self.record(
            **metrics,
            **{"logps/chosen": chosen_logps, "logps/rejected": rejected_logps, "nll_loss": nll},
            **{"lengths/chosen": chosen.sum(dim=1), "lengths/rejected": rejected.sum(dim=1)},
        )
        of_pairs, of_tokens = shares
        preference = self.settings.preference_weight * of_pairs * losses.mean()
        return preference + self.settings.nll_weight * of_tokens * nll

    def _logprobs(self, model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As `completion_logprobs`."""
        batch = {name: tensor for name, tensor in inputs.items() if name != "sampled_logps"}
        return completion_logprobs(model, **batch, config=self.model.config, dtype=self.model.dtype)

    def pair_losses(
        self, chosen_logps: Tensor, rejected_logps: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of B pairs (B,), and metrics; another preference loss takes its place.

        Args:
            chosen_logps, rejected_logps: (B,) log-probabilities, averaged over tokens.
        """
        beta, target_margin = self.settings.beta, self.settings.target_margin
        return simpo_loss(chosen_logps, rejected_logps, beta, target_margin)

    def num_items(self, inputs: dict[str, Tensor]) -> Tensor:
        """Pairs, and tokens of the chosen completions."""
        spoken = inputs["completion_mask"].bool() & (inputs["branch"] == CHOSEN)
        return torch.stack([torch.tensor(len(spoken), device=spoken.device), spoken.sum()])


def completion_logprobs(
    model: nn.Module,
    input_ids: Tensor,
    position_ids: Tensor,
    branch: Tensor,
    completion_mask: Tensor,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    prefix_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of both completions' tokens, from one pass over what the collator made.

    The vocabulary is projected only from the batch's first completion on, not on the prompts.

    Args:
        config, dtype: of the model and its weights, for the attention mask.

    Returns:
        Log-probabilities (B, L') in float32, and which completion each belongs to: CHOSEN,
        REJECTED, or PADDING where there is none.
    """
    start = int(completion_mask.any(dim=0).int().argmax())
    columns = torch.arange(start - 1, input_ids.shape[1] - 1, device=input_ids.device)
    visible = seen_in_branch(branch)
    if prefix_ids is None:
        mask = attention_masks(config, visible, position_ids, position_ids, dtype)
        texts = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "attention_mask": mask,
            "logits_to_keep": columns,
        }
    else:
        texts = one_sequence(prefix_ids, input_ids, position_ids, visible, columns, dtype)
    logits = model(**texts).logits.view(len(input_ids), len(columns), -1)
    spoken = branch.masked_fill(completion_mask == 0, PADDING)
    return token_logprobs(logits, input_ids[:, start:]), spoken[:, start:]


def warn_if_collapsed(run: Run) -> None:
    """Says so when training made the chosen completions much less probable than they were."""
    key = "gains/chosen"
    gains = [record[key] for record in read_metrics(run.directory) if key in record]
    if gains and gains[-1] < -COLLAPSE_NATS:
        log.warning(
            "what was chosen has become less probable by %.2f nats a token: the actor is collapsing"
            ". Set loss.target_kl, lower training.learning_rate, or raise loss.nll_weight",
            -gains[-1],
        )
