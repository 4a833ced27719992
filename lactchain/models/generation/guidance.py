"""Acting by token values: beside an actor's logits, or alone, over all legal answers.

Free and constrained decoding add β min_i Q̂_i(s, ·) to the logits of the cloned policy (Snell et
al. 2022, section 4.3). Scored decoding ranks all answers of the grammar by their advantages, beside
which the policy's log probabilities may count; what they share is read once. Where values are
exact, Q(s_t, a_t) = γ V(s_{t+1}), and the advantage of an answer is the sum over its tokens and,
but for γ, also the value of its last token less V(s); learnt ones differ, see
`RankingConfig`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lactchain.errors import ConfigError, DataError
from lactchain.models.families import finished_logits
from lactchain.models.generation.cascade import CACHE_BYTES, COLUMNS, CascadeTrunk, use_cascade
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.models.values import ValueModel
from lactchain.settings import GuidedActorConfig
from lactchain.types import Action, ChainGrammar

MAX_ANSWERS = 4096
"""Answers that are ranked at most."""

ROWS = 4096
"""Rows of a batch in which answers are read, about; fewer where `CACHE_BYTES` ask for it."""

MEMORY = 4_000_000
"""Advantages that are kept, about: a policy without dice meets the same states again and again."""


class TrainedValues:
    """The values in a folder, loaded when they are needed, to act with.

    Attributes:
        weight: β.
        ranking: how answers are ranked, "sum" or "last".
        policy_weight: factor on the log probabilities of the cloned policy in that.
        policy_floor: what is added to its probabilities before.

    Raises:
        ConfigError: they were trained with another instruction than the actor is given.
        DataError: the folder is damaged, or belongs to another tokenizer.
    """

    def __init__(self, config: GuidedActorConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self.weight, ranking = config.value_weight, config.ranking
        self.ranking, self.policy_weight = ranking.by, ranking.policy_weight
        self.policy_floor = ranking.policy_floor
        self._config = config
        self._directory = Path(config.values)
        meaning, theirs = self.target.meaning, self.target.tokenizer
        if meaning.strategy != config.strategy:
            raise ConfigError(
                f"actor.strategy: expected {meaning.strategy!r}, as {self._directory} was trained "
                f"with, got {config.strategy!r}"
            )
        if theirs.get_vocab() != tokenizer.get_vocab():
            raise DataError(
                f"{self._directory}: was trained with another tokenizer than that of "
                f"{config.model}; give the actor that it began with as actor.model"
            )

    @cached_property
    def online(self) -> ValueModel:
        """The trained model, for V."""
        return ValueModel.load(self._directory, self._config)

    @cached_property
    def target(self) -> ValueModel:
        """Its target network, for Q̂; the trained one where there is no other."""
        return self.online.target_network() if self.online.target else self.online


@dataclass(frozen=True)
class _Level:
    """The tokens at one depth of the tree of answers.

    Attributes:
        parents: (E,) the texts of the level before that these tokens continue.
        tokens: (E,) column of each in the list of all tokens that occur.
        goes_on: (N,) which of the E texts are the next level's.
        ends: (A,) which of them are answers, and `answers` (A,) which answers.
    """

    parents: Tensor
    tokens: Tensor
    goes_on: Tensor
    ends: Tensor
    answers: Tensor


class AnswerRanking:
    """Advantages of all answers of a grammar, in any state.

    Args:
        values: what the answers are worth.
        grammar: the answers.
        template: what the model is asked.
        policy: the cloned policy, whose log probabilities count beside the advantages.

    Attributes:
        actions: the C answers.

    Raises:
        ConfigError: the grammar has too many answers.
    """

    def __init__(
        self,
        values: TrainedValues,
        grammar: ChainGrammar,
        template: PromptTemplate,
        policy: PreTrainedModel,
    ) -> None:
        if grammar.num_answers > MAX_ANSWERS:
            raise ConfigError(
                f"actor.decoding: scored by values expects at most {MAX_ANSWERS} answers, the "
                f"grammar has {grammar.num_answers}; lower environment.max_chain_length, or use "
                "free or constrained decoding"
            )
        online, target = values.online, values.target
        tokenizer, texts = target.tokenizer, list(grammar.answers())
        ids = encode_completions([Action(text) for text in texts], tokenizer)
        self.actions = [
            Action(text, tuple(row), (0.0,) * len(row))
            for text, row in zip(texts, ids, strict=True)
        ]
        columns = sorted({token for row in ids for token in row})
        self._columns = torch.tensor(columns, device=target.trunk.device)
        self._levels = _levels(ids, columns, target.trunk.device)
        self._template = template
        self._discount = target.meaning.gamma if values.ranking == "last" else None
        self._trunks = [
            CascadeTrunk(model.trunk, template.prefix_ids) for model in (target, online)
        ]
        self._target, self._online = target, online
        self._policy, self._policy_weight = policy, values.policy_weight
        self._log_floor = math.log(values.policy_floor) if values.policy_floor else -math.inf
        self._known: dict[str, np.ndarray] = {}

    def scores(self, observations: Sequence[str]) -> np.ndarray:
        """What ranks the answers in each of B states, (B, C): A + weight · log(π_β + floor)."""
        scores = self.advantages(observations)
        if self._policy_weight:
            log_probs = np.logaddexp(self._log_probs(observations), self._log_floor)
            scores = scores + self._policy_weight * log_probs
        return scores

    def advantages(self, observations: Sequence[str]) -> np.ndarray:
        """What each answer is worth in each of B states, (B, C).

        By the ranking "sum" Σ_t (min_i Q̂_i − V); by "last" γ^{n−1} min_i Q̂_i of the n-th token, the
        last one, minus V(s).
        """
        if len(self._known) * len(self.actions) > MEMORY:
            self._known.clear()
        new = [text for text in dict.fromkeys(observations) if text not in self._known]
        if new:
            self._known |= zip(new, self._advantages(new), strict=True)
        return np.stack([self._known[text] for text in observations])

    @torch.inference_mode()
    def _advantages(self, observations: Sequence[str]) -> np.ndarray:
        target, online = self._trunks
        values = self._answer_values(observations, target, self._q, self._discount)
        if self._discount is not None:
            return values - self.state_values(observations)[:, None]
        return values - self._answer_values(observations, online, self._v)

    @torch.inference_mode()
    def _log_probs(self, observations: Sequence[str]) -> np.ndarray:
        """How probable the cloned policy finds the answers in B states, (B, C)."""
        trunk = CascadeTrunk(self._policy, self._template.prefix_ids)
        return self._answer_values(observations, trunk, self._log_prob)

    @torch.inference_mode()
    def state_values(self, observations: Sequence[str]) -> np.ndarray:
        """V(s) of B states (B,), before the first token of an answer."""
        prompts, trunk = self._template.encode_batch(observations), self._trunks[1]
        size = self._rows_at_once(prompts, trunk)
        parts = []
        with use_cascade(trunk.model):
            for i in range(0, len(prompts), size):
                _, _, hidden = trunk.read(prompts[i : i + size])
                parts.append(self._online.v_head(hidden)[:, 0])
        return torch.cat(parts).cpu().numpy()

    def _q(self, hidden: Tensor) -> Tensor:
        return self._target.least_q(hidden, self._columns)

    def _v(self, hidden: Tensor) -> Tensor:
        return self._online.v_head(hidden).expand(-1, len(self._columns))

    def _log_prob(self, hidden: Tensor) -> Tensor:
        logits = self._policy.get_output_embeddings()(hidden)
        logits = finished_logits(self._policy.config, logits)
        return logits.float().log_softmax(-1)[:, self._columns]

    def _answer_values(
        self,
        observations: Sequence[str],
        trunk: CascadeTrunk,
        values: Callable[[Tensor], Tensor],
        discount: float | None = None,
    ) -> np.ndarray:
        """Values (B, C): of an answer's tokens the sum; given a discount, of the last one alone."""
        prompts = self._template.encode_batch(observations)
        widest = max(len(level.tokens) for level in self._levels)
        size = max(1, self._rows_at_once(prompts, trunk) // widest)
        parts = [
            self._values_of_some(prompts[i : i + size], trunk, values, discount)
            for i in range(0, len(prompts), size)
        ]
        return torch.cat(parts).cpu().numpy()

    def _rows_at_once(self, prompts: Sequence[Sequence[int]], trunk: CascadeTrunk) -> int:
        """How many rows are read together; those of a level and of the one before are held."""
        own = max(map(len, prompts)) - len(trunk.prefix_ids)
        columns = own + max(COLUMNS, len(self._levels))
        fitting = CACHE_BYTES[trunk.model.device.type] // (2 * columns * trunk.bytes_per_column)
        return max(1, min(ROWS, fitting))

    def _values_of_some(
        self,
        prompts: Sequence[Sequence[int]],
        trunk: CascadeTrunk,
        values: Callable[[Tensor], Tensor],
        discount: float | None,
    ) -> Tensor:
        count, device = len(prompts), self._columns.device
        totals = torch.empty(count, len(self.actions), device=device)
        with use_cascade(trunk.model):
            cache, lengths, hidden = trunk.read(prompts, room=min(len(self._levels), COLUMNS))
            reached = torch.zeros(count, 1, device=device)
            for depth, level in enumerate(self._levels):
                step = values(hidden).view(count, reached.shape[1], -1)
                first = torch.arange(count, device=device)[:, None] * reached.shape[1]
                step = step[:, level.parents, level.tokens]
                if discount is None:
                    reached = reached[:, level.parents] + step
                else:
                    reached = discount**depth * step
                totals[:, level.answers] = reached[:, level.ends]
                if len(level.goes_on):
                    rows = (first + level.parents[level.goes_on]).flatten()
                    blocks = self._columns[level.tokens[level.goes_on]].repeat(count)[:, None]
                    cache, lengths = cache.select(rows), lengths[rows]
                    hidden, lengths = trunk.feed(blocks, lengths, cache)
                    reached = reached[:, level.goes_on]
        return totals


def _levels(
    answers: Sequence[Sequence[int]], columns: Sequence[int], device: torch.device
) -> list[_Level]:
    """The tree of the answers, a level for each place of a token in them."""
    column = {token: number for number, token in enumerate(columns)}
    levels, before = [], {(): 0}
    for length in range(1, max(map(len, answers)) + 1):
        texts: dict[tuple[int, ...], int] = {}
        for answer in answers:
            if len(answer) >= length:
                texts.setdefault(tuple(answer[:length]), len(texts))
        inner = {tuple(answer[:length]) for answer in answers if len(answer) > length}
        ending = [i for i, answer in enumerate(answers) if len(answer) == length]
        lists = (
            [before[text[:-1]] for text in texts],
            [column[text[-1]] for text in texts],
            [number for text, number in texts.items() if text in inner],
            [texts[tuple(answers[i])] for i in ending],
            ending,
        )
        levels.append(_Level(*(torch.tensor(x, dtype=torch.long, device=device) for x in lists)))
        going_on = (text for text in texts if text in inner)
        before = {text: number for number, text in enumerate(going_on)}
    return levels
