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
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from lactchain import plugins
from lactchain.config.settings import SimPOConfig
from lactchain.errors import ConfigError, DataError
from lactchain.functional.losses import simpo_loss
from lactchain.functional.tokens import masked_mean, pad, token_logprobs
from lactchain.models import attention
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.models.runtime import evaluating
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

    Those are of which prompt and completion have more than `max_length` tokens, and are not cut: a
    completion cut to nothing is a mean over no tokens. `DataError` if there were pairs, and none is
    left; or another tokenizer's model sampled one.
    """
    completions = {}
    for side in ("chosen", "rejected"):
        actions = [Action(getattr(p, side), getattr(p, f"{side}_token_ids")) for p in pairs]
        asked = zip((pair.prompt for pair in pairs), actions, strict=True)
        template.check_untemplated(asked, f"pairs: {side}")
        name = f"pairs: row {{}}, {side} completion".format
        completions[f"{side}_ids"] = encode_completions(actions, tokenizer, name)
    prompts = template.encode_batch([pair.prompt for pair in pairs])
    rows, dropped = [], Counter()
    for number, (pair, prompt) in enumerate(zip(pairs, prompts, strict=True)):
        row = {"prompt_ids": prompt, **{side: ids[number] for side, ids in completions.items()}}
        sampled = pair.chosen_logprobs, pair.rejected_logprobs
        row["sampled_logps"] = [sum(logps) / len(logps) if logps else math.nan for logps in sampled]
        row["pair"] = number
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
    """Rows → one sequence per pair: the prompt once, then the chosen and the rejected completion.

    Both completions begin with a copy of the prompt's last token at its place, so that every token
    is predicted from the one before it. `branch` says who sees whom (`seen_in_branch`): SHARED
    prompt, CHOSEN, REJECTED, PADDING. The prompt is most of a batch, and is paid for once instead
    of twice.

    All tensors are (B, L), padded on the right: `input_ids`, `position_ids` and `branch`. What all
    prompts begin with is `prefix_ids` (P,) where that is worth it, and is left out of the others:
    with `share`, the model `can_read_once`.
    """

    def __init__(self, pad_token_id: int, share: bool = False) -> None:
        self.pad_token_id = pad_token_id
        self.share = share

    def __call__(self, rows: Sequence[PreferenceRow]) -> dict[str, Tensor]:
        """The batch of B rows."""
        longest = 1 + max(sum(len(row[name]) for name in IDS) for row in rows)
        prompts = [row["prompt_ids"] for row in rows]
        before = attention.shared_length(prompts, longest) if self.share else 0
        ids, positions, branches = [], [], []
        for row in rows:
            *shared, last = row["prompt_ids"][before:]
            parts = shared, [last, *row["chosen_ids"]], [last, *row["rejected_ids"]]
            start = before + len(shared)
            ids.append(sum(parts, []))
            positions.append([*range(before, start)])
            for part in parts[1:]:
                positions[-1] += range(start, start + len(part))
            kinds = zip((SHARED, CHOSEN, REJECTED), parts, strict=True)
            branches.append([kind for kind, part in kinds for _ in part])
        batch = {
            "input_ids": pad(ids, self.pad_token_id),
            "position_ids": pad(positions, 0),
            "branch": pad(branches, PADDING),
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


def spoken(branch: Tensor) -> Tensor:
    """The completion that each token is of, (B, L); PADDING elsewhere, as in its first column."""
    begins = torch.ones_like(branch, dtype=torch.bool)
    begins[:, 1:] = branch[:, 1:] != branch[:, :-1]
    return branch.masked_fill(begins | (branch == SHARED), PADDING)


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
        kind = model.config._attn_implementation
        if kind not in ("sdpa", "eager", attention.READ_ONCE):
            raise ConfigError(
                f"attention: expected sdpa or eager, which take a mask per pair, got {kind}"
            )
        attention.check_family(model)
        share = attention.can_read_once(model)
        if len(rows) and "prompt_ids" not in rows[0]:
            pair_of = plugins.required("data_sets", "rows").pair_of
            pairs = [pair_of(row, f"rows: row {number}") for number, row in enumerate(rows)]
            most = attention.context_length(model.config)
            rows, _ = preference_rows(pairs, PromptTemplate(tokenizer), tokenizer, most)
        collator = PreferenceCollator(tokenizer.pad_token_id, share)
        super().__init__(
            model, args, collator, train_dataset=rows, processing_class=tokenizer, **kwargs
        )
        self.settings = settings

    @torch.no_grad()
    def completion_logprobs(self, rows: Sequence[PreferenceRow]) -> Tensor:
        """Log-probabilities (B, 2) of chosen and rejected of B rows, summed over their tokens."""
        batch = self._prepare_inputs(self.data_collator(rows))
        with evaluating(self.model), self.compute_loss_context_manager():
            logprobs, branch = completion_logprobs(self.model, batch, self.model.dtype)
        sides = (logprobs.double().masked_fill(branch != side, 0) for side in (CHOSEN, REJECTED))
        return torch.stack([side.sum(dim=1) for side in sides], dim=1)

    def logprobs_after(self, batch_size: int) -> dict[int, tuple[float, float]]:
        """What `completion_logprobs` are of the first pairs, by their places."""
        rows = self.train_dataset[:NUM_SHOWN]
        batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
        sums = torch.cat([self.completion_logprobs(batch) for batch in batches]).tolist()
        return {row["pair"]: tuple(both) for row, both in zip(rows, sums, strict=True)}

    def loss_of(self, model: nn.Module, inputs: dict[str, Tensor], shares: Tensor) -> Tensor:
        """Mean loss of B pairs, or their share of an update's, from one forward pass."""
        logprobs, branch = completion_logprobs(model, inputs, self.model.dtype)
        chosen, rejected = branch == CHOSEN, branch == REJECTED
        chosen_logps = masked_mean(logprobs, chosen, dim=1)
        rejected_logps = masked_mean(logprobs, rejected, dim=1)
        losses, metrics = self.pair_losses(chosen_logps, rejected_logps)
        nll = -masked_mean(logprobs, chosen)
        if "sampled_logps" in inputs:
            gains = torch.stack([chosen_logps, rejected_logps]) - inputs["sampled_logps"].T
            known = [gain[gain.isfinite()] for gain in gains]
            self.record(**{"gains/chosen": known[0], "gains/rejected": known[1]})
        self.record(
            **metrics,
            **{"logps/chosen": chosen_logps, "logps/rejected": rejected_logps, "nll_loss": nll},
            **{"lengths/chosen": chosen.sum(dim=1), "lengths/rejected": rejected.sum(dim=1)},
        )
        of_pairs, of_tokens = shares
        preference = self.settings.preference_weight * of_pairs * losses.mean()
        return preference + self.settings.nll_weight * of_tokens * nll

    def pair_losses(
        self, chosen_logps: Tensor, rejected_logps: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of B pairs (B,), and metrics; another preference loss takes its place.

        Both log-probabilities are (B,), averaged over tokens.
        """
        beta, target_margin = self.settings.beta, self.settings.target_margin
        return simpo_loss(chosen_logps, rejected_logps, beta, target_margin)

    def num_items(self, inputs: dict[str, Tensor]) -> Tensor:
        """Pairs, and tokens of the chosen completions."""
        chosen = spoken(inputs["branch"]) == CHOSEN
        return torch.stack([torch.tensor(len(chosen), device=chosen.device), chosen.sum()])


def completion_logprobs(
    model: nn.Module, batch: Mapping[str, Tensor], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of both completions' tokens, from one pass over what the collator made.

    The vocabulary is projected only from the batch's first completion on, not on the prompts. The
    `dtype` of the model's weights is for the attention mask.

    Returns:
        Log-probabilities (B, L') in float32, and which completion each belongs to: CHOSEN,
        REJECTED, or PADDING where there is none.
    """
    ids, branches = batch["input_ids"], spoken(batch["branch"])
    start = int((branches != PADDING).any(dim=0).int().argmax())
    columns = torch.arange(start - 1, ids.shape[1] - 1, device=ids.device)
    visible = seen_in_branch(batch["branch"])
    texts = attention.one_sequence(batch, visible, columns, dtype)
    logits = model(**texts).logits.view(len(ids), len(columns), -1)
    return token_logprobs(logits, ids[:, start:]), branches[:, start:]


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
