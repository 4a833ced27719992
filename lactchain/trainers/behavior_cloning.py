"""Behaviour cloning: (prompt, completion) → an actor that answers alike.

Only completions are learnt. Rows are token ids: what the actor is asked later is, token for token,
what it was trained on. A cloning may end when the actor reads (`ReadingCheck`).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
)

from lactchain.config.settings import ActorConfig
from lactchain.data.episodes import sampled_states
from lactchain.data.rollouts import Rollouts
from lactchain.data.samples import retrieval_figures
from lactchain.errors import DataError
from lactchain.models.actor import LanguageActor
from lactchain.models.attention import can_read_once, one_sequence, shared_length
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.trainers.guards import GuardedTrainer
from lactchain.types import Action, Trajectory

IGNORED = -100
"""Label of tokens that are not learnt, as transformers has it."""

NUM_LOOKS = 8
"""How often one looks, over a whole training: a look costs as much as some updates."""

NUM_STATES = 32
"""States that are asked each time."""

MIN_SKILL = 0.2
"""Retrieval skill of one that reads: who says the same to all states has 0, and rounds have made
actors of .22 to .47 better."""

MIN_ANSWERED = 0.9
"""Share of the completions that have to be chains."""

log = logging.getLogger(__name__)

CloningRow = dict[str, list[int]]
"""`input_ids`, and `labels` that are `IGNORED` on the prompt."""


def cloning_rows(
    examples: Sequence[tuple[str, Action]],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
) -> tuple[list[CloningRow], Counter[str]]:
    """The rows to train on, and how many examples were dropped for which reason.

    Those are dropped of which prompt and completion have more than `max_length` tokens. `DataError`
    if there were examples, and none is left; or another tokenizer's model sampled one.
    """
    template.check_untemplated(examples, "examples")
    rows, dropped = [], Counter()
    for prompt, completion in _encoded(examples, template, tokenizer, "examples: row {}".format):
        if not completion:
            dropped["empty completion"] += 1
        elif max_length is not None and len(prompt) + len(completion) > max_length:
            dropped["over-long"] += 1
        else:
            rows.append(completion_row(prompt, completion))
    if examples and not rows:
        raise DataError(f"all {len(examples)} examples were dropped: {dict(dropped)}")
    return rows, dropped


def _encoded(
    examples: Sequence[tuple[str, Action]],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    name: Callable[[int], str],
) -> Iterator[tuple[list[int], list[int]]]:
    """The token ids of each example's prompt and completion."""
    prompts = template.encode_batch([observation for observation, _ in examples])
    completions = encode_completions([action for _, action in examples], tokenizer, name)
    return zip(prompts, completions, strict=True)


def completion_row(prompt: list[int], completion: list[int]) -> CloningRow:
    """The row of a completion that is learnt behind its prompt."""
    return {"input_ids": prompt + completion, "labels": [IGNORED] * len(prompt) + completion}


class CompletionCollator:
    """Rows → a batch padded on the left, so that logits are wanted of the last columns alone.

    With `share`, the model `can_read_once`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, share: bool = False) -> None:
        if tokenizer.padding_side != "left":
            raise ValueError(f"tokenizer: expected padding on the left of {tokenizer.name_or_path}")
        self._pad = DataCollatorForSeq2Seq(tokenizer)
        self._share = share

    def __call__(self, rows: Sequence[CloningRow]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask`, `position_ids` (B, L), `labels` (B, K), and more.

        `logits_to_keep` (K,) are the last columns, one more than the longest completion has tokens.
        What all prompts begin with is `prefix_ids` (P,) where that is worth it, and is left out of
        the others.
        """
        shared = 0
        if self._share:
            firsts = (np.argmax(np.array(row["labels"]) != IGNORED) for row in rows)
            prompts = [row["input_ids"][:end] for row, end in zip(rows, firsts, strict=True)]
            shared = shared_length(prompts, max(len(row["input_ids"]) for row in rows))
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


def as_one_sequence(batch: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """A batch of rows behind `prefix_ids` as the model takes it; the labels stay behind each other.

    The first label of a row is none, so that no row is predicted from the one before it.
    """
    mask = batch["attention_mask"].bool()
    visible = mask[:, None].expand(-1, mask.shape[1], -1).tril()
    texts = one_sequence(batch, visible, batch["logits_to_keep"], dtype)
    return {**texts, "labels": batch["labels"].flatten()[None]}


class BehaviorCloningTrainer(GuardedTrainer):
    """Minimises the mean negative log-likelihood of the completions' tokens, by the library."""

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        rows: Sequence[CloningRow],
        tokenizer: PreTrainedTokenizerBase,
        **kwargs: Any,
    ) -> None:
        collator = CompletionCollator(tokenizer, can_read_once(model))
        super().__init__(
            model, args, collator, train_dataset=rows, processing_class=tokenizer, **kwargs
        )

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], **asked: Any) -> Any:
        """Rows behind a shared beginning as one sequence; else as the library has it."""
        if "prefix_ids" in inputs:
            inputs = as_one_sequence(inputs, self.model.dtype)
        return super().compute_loss(model, inputs, **asked)


def decision_rows(
    trajectories: Sequence[Trajectory],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
    only_final: bool = False,
) -> list[CloningRow]:
    """A row for each decision of recorded episodes, or for the last of each: completions verbatim.

    A decision is left out where its episode was cut behind it, out of sight of the state. An empty
    completion is its end of sequence. `DataError` if there is no decision; or one, by episode and
    decision, takes more tokens than the model's context, `max_length`, prompt and completion
    together, or was sampled by another tokenizer's model.
    """
    lengths = [len(episode) - episode.cut_out_of_sight for episode in trajectories]
    places = [(e, t) for e, n in enumerate(lengths) for t in range(n - 1 if only_final else 0, n)]
    if not places:
        raise DataError(f"trajectories: expected decisions, got none in {len(trajectories)}")
    decisions = [(trajectories[e].observations[t], trajectories[e].actions[t]) for e, t in places]

    def name(number: int) -> str:
        return "trajectories: episode {}, decision {}".format(*places[number])

    template.check_untemplated(decisions, "trajectories: decisions")
    encoded = _encoded(decisions, template, tokenizer, name)
    rows = [completion_row(prompt, ids or [tokenizer.eos_token_id]) for prompt, ids in encoded]
    for number, length in enumerate(len(row["input_ids"]) for row in rows):
        if max_length is not None and length > max_length:
            raise DataError(
                f"{name(number)}: prompt and completion take {length} tokens, the model reads"
                f" {max_length}; shorten environment.history or actor.strategy"
            )
    return rows


class ReadingCheck(TrainerCallback):
    """Asks the actor in training now and then, and ends the training once it reads.

    Args:
        actor: how it is asked; it answers freely, at temperature 1.
        rollouts: some states are asked as they are when an episode begins, the same each time.
    """

    def __init__(
        self, trainer: GuardedTrainer, target_skill: float, actor: ActorConfig, rollouts: Rollouts
    ) -> None:
        self._trainer, self._target_skill, self._env = trainer, target_skill, rollouts.env
        self._actor = replace(actor, decoding="free", temperature=1.0)
        states = sampled_states(self._env, len(self._env.start_states()), trainer.args.seed)
        self._observations = rollouts.observe(states)
        self._last: tuple[int, dict[str, float]] = -1, {}

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """The cloning may be over before all is learnt."""
        self._trainer.step.most = True

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Looks when it is time to."""
        due = state.global_step % max(1, state.max_steps // NUM_LOOKS) == 0
        if not due or state.global_step >= state.max_steps:
            return
        log.info("after %d updates: a look at whether it reads", state.global_step)
        figures = self.figures()
        self._trainer.record(
            **{f"reading/{name}": torch.tensor(value) for name, value in figures.items()}
        )
        skill, target = figures.get("retrieval_skill", 0.0), self._target_skill
        log.info("retrieval skill %.2f, %g ends the cloning", skill, target)
        if reads(figures, target):
            log.info("the actor reads: the cloning ends")
            state.max_steps = state.global_step  # so that a resumed run knows it is finished
            control.should_log = control.should_save = control.should_training_stop = True

    def figures(self) -> dict[str, float]:
        """Those of `retrieval_figures`, of the actor as it stands; the same on all processes."""
        trainer = self._trainer
        step, found = self._last
        if step == trainer.state.global_step:  # a look costs as much as ten updates and more
            return found
        with trainer.compute_loss_context_manager():
            tokenizer, grammar = trainer.processing_class, self._env.grammar
            actor = LanguageActor(trainer.model, tokenizer, self._actor, grammar)
            texts, seed = self._observations, trainer.args.seed
            found = retrieval_figures(actor, self._env, texts, seed, num_states=NUM_STATES)
        self._last = trainer.state.global_step, found
        return found


def reads(figures: dict[str, float], min_skill: float) -> bool:
    """Whether an actor answers in chains, and to what it is asked."""
    skill = figures.get("retrieval_skill", 0.0)
    return skill >= min_skill and figures["answered_rate"] >= MIN_ANSWERED
