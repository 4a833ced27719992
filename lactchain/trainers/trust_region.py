"""A training that cannot leave the neighbourhood of the policy that sampled its data.

Adam's first updates move every weight by about the learning rate, whatever the gradient. So the
distance itself is measured, after each update and before it counts.
"""

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback

from lactchain.errors import DataError
from lactchain.functional.losses import kl_from_sampler, kl_to_sampler
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.trainers.simpo import SimPOTrainer
from lactchain.types import Action, PreferencePair

NUM_SAMPLES = 32
"""Completions by which the distance is measured, at most."""

NUM_HALVINGS = 6
"""How often the update that went too far is halved, before it is dropped."""

MOST_CUTS = 3
"""So many updates that went too far end the training; each of those before halves its rate."""

log = logging.getLogger(__name__)


class TrustRegion(TrainerCallback):
    """Keeps a training within its bound: KL(sampling‖new) ≤ `limit` nats a completion.

    It is measured on `NUM_SAMPLES`. The update that would leave the region is halved until it does
    not, or dropped (the backtracking of Schulman et al. 2015, "TRPO", appendix C). Adam's first
    updates may well do so once, on the way to a policy that is nearer: the training goes on at half
    the rate, and ends at the third time.

    Args:
        pairs: of which the first are taken that hold what the policy itself said to the prompt.
        limit: the bound; `DataError` if there is nothing to measure it by. None: there is none, and
            nothing is measured on the way.
    """

    def __init__(
        self,
        trainer: SimPOTrainer,
        pairs: Sequence[PreferencePair],
        template: PromptTemplate,
        limit: float | None,
    ) -> None:
        known = [pair for pair in pairs if pair.sampled_logprobs][:NUM_SAMPLES]
        if limit is not None and not known:
            raise DataError(
                "pairs: expected the log-probabilities under which the policy sampled, which"
                " loss.target_kl is measured by, found none; make the pairs anew by"
                " make_preferences, or set loss.target_kl to null"
            )
        tokenizer = trainer.processing_class
        prompts = template.encode_batch([pair.prompt for pair in known])
        actions = [Action(pair.sampled, pair.sampled_token_ids) for pair in known]
        name = "pairs: row {}, sampled completion".format
        completions = encode_completions(actions, tokenizer, name)
        self._rows = [
            {"prompt_ids": prompt, "chosen_ids": ids, "rejected_ids": [tokenizer.eos_token_id]}
            for prompt, ids in zip(prompts, completions, strict=True)
        ]
        self._logprobs = torch.tensor([sum(pair.sampled_logprobs) for pair in known])
        self._trainer, self._limit = trainer, limit
        self._trained = [p for p in trainer.model.parameters() if p.requires_grad]
        self._before: list[Tensor] = []

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        """Remembers the weights that the update can be taken back to."""
        if self._limit is not None:
            self._before = [weight.detach().clone() for weight in self._trained]

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Measures the update that was taken, shortens it where it went too far, and ends there."""
        if self._limit is None:
            return
        distance = self._measure()
        self._trainer.record(**{"kl/from_sampling": torch.tensor(distance)})
        if distance > self._limit:
            self._shorten()
            num_cuts = _halve_rate(kwargs["optimizer"], kwargs["lr_scheduler"], args.learning_rate)
            log.info(
                "update %d of %d: KL(sampling‖new) would be %.3g nats a completion, above"
                " loss.target_kl %g: it is cut to %.3g, and the training %s",
                *(state.global_step, state.max_steps, distance, self._limit, self._measure()),
                "ends" if num_cuts == MOST_CUTS else "goes on at half the rate",
            )
            if num_cuts == MOST_CUTS:
                state.max_steps = state.global_step  # so that a resumed run knows it is finished
                control.should_log = control.should_save = control.should_training_stop = True

    def distances(self) -> dict[str, float]:
        """`kl_from_sampling`, KL(sampling‖new), and `kl_to_sampling`, in nats a completion.

        Nothing where the pairs hold no samples.
        """
        if not self._rows:
            return {}
        kinds = {"kl_from_sampling": kl_from_sampler, "kl_to_sampling": kl_to_sampler}
        # How much more probable the samples became (B,); the same on all processes.
        ratios = self._trainer.completion_logprobs(self._rows)[:, 0].cpu() - self._logprobs
        return {name: of_ratios(ratios).mean().item() for name, of_ratios in kinds.items()}

    def _measure(self) -> float:
        return self.distances()["kl_from_sampling"]

    @torch.no_grad()
    def _shorten(self) -> None:
        after = [weight.detach().clone() for weight in self._trained]
        for halving in range(1, NUM_HALVINGS + 1):
            for weight, old, new in zip(self._trained, self._before, after, strict=True):
                weight.copy_(torch.lerp(old, new, 0.5**halving))
            if self._measure() <= self._limit:
                return
        for weight, old in zip(self._trained, self._before, strict=True):
            weight.copy_(old)


def _halve_rate(optimizer: Optimizer, scheduler: LRScheduler, given: float) -> int:
    """Halves the rate of all updates to come; how often so since the start, by the scheduler."""
    scheduler.base_lrs = [rate / 2 for rate in scheduler.base_lrs]
    for group in optimizer.param_groups:
        group["lr"] /= 2
    return round(math.log2(given / scheduler.base_lrs[0]))
