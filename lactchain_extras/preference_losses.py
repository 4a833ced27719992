"""Losses of a policy on the K completions of a state, to be compared with SimPO's.

Each is a pure function of `Scored` and of its settings, and gives a number for each state, (B,).
Losses of pairs compare the best completion with the worst. The policy that sampled the completions
is the reference model of those that have one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from lactchain.functional.losses import kl_to_sampler, simpo_loss
from lactchain.functional.tokens import token_logprobs
from lactchain.models.attention import can_read_once
from lactchain.models.runtime import evaluating
from lactchain.trainers.base import UpdateMeanTrainer
from lactchain.trainers.behavior_cloning import (
    IGNORED,
    CompletionCollator,
    as_one_sequence,
    completion_row,
)


@dataclass(frozen=True)
class Scored:
    """Completions to B states, best first, at most K each; a state has two at least.

    Attributes:
        logps: (B, K) log-probabilities by the policy in training, summed over tokens.
        sampled_logps: (B, K) the same by the policy that sampled.
        lengths: (B, K) tokens; 0 where a state has no further completion.
        scores: (B, K) what they are ranked by.
    """

    logps: Tensor
    sampled_logps: Tensor
    lengths: Tensor
    scores: Tensor

    @property
    def exists(self) -> Tensor:
        """(B, K) where there is a completion."""
        return self.lengths > 0

    @property
    def means(self) -> Tensor:
        """(B, K) log-probabilities, averaged over tokens."""
        return self.logps / self.lengths.clamp(min=1)

    @property
    def log_ratios(self) -> Tensor:
        """(B, K) log π − log π_sampled of whole completions."""
        return self.logps - self.sampled_logps

    def ends(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Of (B, K) values those of the best and of the worst completion, (B,) each."""
        worst = self.exists.sum(dim=1, keepdim=True) - 1
        return values[:, 0], values.gather(1, worst).squeeze(1)

    def weights(self, temperature: float) -> Tensor:
        """(B, K) softmax of the scores over a temperature, among what exists."""
        return (self.scores / temperature).masked_fill(~self.exists, -torch.inf).softmax(dim=1)


def simpo(rows: Scored, beta: float, target_margin: float) -> Tensor:
    """−log σ(β(ℓ_w − ℓ_l) − γ) of averages ℓ (Meng, Xia & Chen 2024, equation 6)."""
    return simpo_loss(*rows.ends(rows.means), beta, target_margin)[0]


def dpo(rows: Scored, beta: float) -> Tensor:
    """−log σ(β(r_w − r_l)) of log-ratios r (Rafailov et al. 2023, equation 7)."""
    chosen, rejected = rows.ends(rows.log_ratios)
    return -F.logsigmoid(beta * (chosen - rejected))


def ipo(rows: Scored, beta: float) -> Tensor:
    """(r_w − r_l − 1/2β)² of log-ratios r (Azar et al. 2023, equation 17, their τ being β)."""
    chosen, rejected = rows.ends(rows.log_ratios)
    return (chosen - rejected - 1 / (2 * beta)) ** 2


def kto(rows: Scored, beta: float) -> Tensor:
    """2 − σ(β(r_w − z)) − σ(β(z − r_l)) of log-ratios r (Ethayarajh et al. 2024, equation 8).

    z estimates KL(π‖π_sampled) by the batch's own completions, which the latter sampled, and is not
    learnt through; the paper uses prompts with the completions of others.
    """
    chosen, rejected = rows.ends(rows.log_ratios)
    z = kl_to_sampler(rows.log_ratios.detach()[rows.exists]).mean()
    return 2 - torch.sigmoid(beta * (chosen - z)) - torch.sigmoid(beta * (z - rejected))


def orpo(rows: Scored, beta: float) -> Tensor:
    """−ℓ_w − β log σ(log odds_w − log odds_l) of averages ℓ (Hong et al. 2024, equation 6)."""
    chosen, rejected = rows.ends(rows.means)
    odds = [logp - torch.log1p(-logp.exp().clamp(max=1 - 1e-6)) for logp in (chosen, rejected)]
    return -chosen - beta * F.logsigmoid(odds[0] - odds[1])


def slic(rows: Scored, beta: float) -> Tensor:
    """max(0, 1 − β(log π_w − log π_l)), the margin being 1/β (Zhao et al. 2023, equation 1).

    Its regularisation by the likelihood of a target is what all losses may have beside them.
    """
    chosen, rejected = rows.ends(rows.logps)
    return torch.relu(1 - beta * (chosen - rejected))


def listwise(rows: Scored, beta: float, temperature: float) -> Tensor:
    """Cross-entropy of softmax(βℓ) from softmax(scores/T), over all K (Cao et al. 2007, ListNet).

    As in Liu et al. 2024 ("LiPO"), with SimPO's averages ℓ in the place of log-ratios.
    """
    logprobs = (beta * rows.means).masked_fill(~rows.exists, -torch.inf).log_softmax(dim=1)
    return -(rows.weights(temperature) * logprobs.masked_fill(~rows.exists, 0.0)).sum(dim=1)


def weighted_cloning(rows: Scored, temperature: float) -> Tensor:
    """−Σ softmax(scores/T) ℓ over all K (Peng et al. 2019, "AWR", normalised in each state)."""
    return -(rows.weights(temperature) * rows.means).sum(dim=1)


def cloning(rows: Scored) -> Tensor:
    """−ℓ_w: the best of K alone is learnt."""
    return -rows.means[:, 0]


@dataclass(frozen=True)
class Loss:
    """A loss, the settings of its source, and whether it looks at more than best and worst."""

    function: Callable[..., Tensor]
    settings: Mapping[str, float]
    takes_all: bool = False


LOSSES = {
    "simpo": Loss(simpo, {"beta": 2.5, "target_margin": 0.5}),
    "dpo": Loss(dpo, {"beta": 0.1}),
    "ipo": Loss(ipo, {"beta": 0.1}),
    "kto": Loss(kto, {"beta": 0.1}),
    "orpo": Loss(orpo, {"beta": 0.1}),
    "slic": Loss(slic, {"beta": 1.0}),
    "listwise": Loss(listwise, {"beta": 2.5, "temperature": 0.5}, takes_all=True),
    "weighted_cloning": Loss(weighted_cloning, {"temperature": 0.5}, takes_all=True),
    "cloning": Loss(cloning, {}),
}

ScoredRow = Mapping[str, Any]
"""`prompt_ids`, and of each completion, best first, its token ids in `completions` and `scores`."""

READ = ("input_ids", "attention_mask", "position_ids", "logits_to_keep")
"""What a model is given of a batch."""


class ScoredCollator:
    """B states → N prompts with one completion each, and where these stand in (B, K).

    Of a `CompletionCollator`, which pads the prompts and completions.
    """

    def __init__(self, pad_texts: CompletionCollator) -> None:
        self._pad_texts = pad_texts

    def __call__(self, rows: Sequence[ScoredRow]) -> dict[str, Tensor]:
        """The batch of B states, whose completions stand behind each other."""
        texts = [
            completion_row(row["prompt_ids"], ids) for row in rows for ids in row["completions"]
        ]
        counts = torch.tensor([len(row["completions"]) for row in rows])
        exists = torch.arange(int(counts.max())) < counts[:, None]

        def table(name: str) -> Tensor:
            lists = [row.get(name) or [math.nan] * len(row["completions"]) for row in rows]
            flat = torch.tensor([value for values in lists for value in values])
            return torch.zeros(exists.shape).masked_scatter(exists, flat.float())

        known = {name: table(name) for name in ("scores", "sampled_logps")}
        return {**self._pad_texts(texts), "exists": exists, **known}


def score(model: nn.Module, inputs: Mapping[str, Tensor], dtype: torch.dtype) -> Scored:
    """The completions of a batch by a model of a type, from one forward pass."""
    texts = as_one_sequence(inputs, dtype) if "prefix_ids" in inputs else inputs
    asked = {name: texts[name] for name in READ}
    labels = inputs["labels"][:, 1:]
    mask = labels != IGNORED
    logits = model(**asked).logits.view(*inputs["labels"].shape, -1)[:, :-1]
    logps = (token_logprobs(logits, labels * mask) * mask).sum(dim=1)
    exists = inputs["exists"]
    table = torch.zeros(exists.shape, device=labels.device)
    return Scored(
        table.masked_scatter(exists, logps),
        inputs["sampled_logps"],
        torch.zeros_like(exists, dtype=torch.long).masked_scatter(exists, mask.sum(dim=1)),
        inputs["scores"],
    )


@torch.no_grad()
def with_reference(
    rows: Sequence[ScoredRow], model: PreTrainedModel, collator: ScoredCollator, at_once: int
) -> list[ScoredRow]:
    """Rows with `sampled_logps`, log-probabilities by a model, summed over tokens."""
    found: list[ScoredRow] = []
    with evaluating(model):
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            logps = score(model, collator(some), model.dtype).logps.tolist()
            found += [
                {**row, "sampled_logps": sums[: len(row["completions"])]}
                for row, sums in zip(some, logps, strict=True)
            ]
    return found


class PreferenceLossTrainer(UpdateMeanTrainer):
    """Trains a causal language model by one of `LOSSES`, and the likelihood of the best beside it.

    Metrics, means over the logging window: `loss/preference`, `nll_loss` of the best completions
    (a token), `gains/chosen` and `gains/rejected` (how much more probable a token has become).

    Args:
        rows: of each state; the model as it comes is the one that sampled.
        loss: of `Scored`, settings given.
        nll_weight: of the likelihood of the best.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        rows: Sequence[ScoredRow],
        tokenizer: PreTrainedTokenizerBase,
        loss: Callable[[Scored], Tensor],
        nll_weight: float,
        **kwargs: Any,
    ) -> None:
        collator = ScoredCollator(CompletionCollator(tokenizer, can_read_once(model)))
        known = with_reference(rows, model, collator, args.per_device_train_batch_size)
        super().__init__(
            model=model,
            args=args,
            data_collator=collator,
            train_dataset=known,
            processing_class=tokenizer,
            **kwargs,
        )
        self.loss, self.nll_weight = loss, nll_weight

    def num_items(self, inputs: dict[str, Tensor]) -> Tensor:
        """States, and tokens of their best completions."""
        counts = inputs["exists"].sum(dim=1)
        best = counts.cumsum(dim=0) - counts  # the first row of each state
        states = torch.tensor(len(counts), device=best.device)
        return torch.stack([states, (inputs["labels"][best] != IGNORED).sum()])

    def loss_of(self, model: nn.Module, inputs: dict[str, Tensor], shares: Tensor) -> Tensor:
        """Mean loss of B states, or their share of an update's."""
        rows = score(model, inputs, self.model.dtype)
        preference = self.loss(rows).mean()
        nll = -rows.logps[:, 0].sum() / rows.lengths[:, 0].sum()
        gains = rows.ends(rows.log_ratios / rows.lengths.clamp(min=1))
        losses = {"loss/preference": preference, "nll_loss": nll}
        self.record(**losses, **{"gains/chosen": gains[0], "gains/rejected": gains[1]})
        return shares[0] * preference + self.nll_weight * shares[1] * nll
