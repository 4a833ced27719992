"""Acting by token values: beside an actor's logits, or alone, over all legal completions.

Free and constrained decoding add β min_i Q̂_i(s, ·) to the logits of the cloned policy (Snell et
al. 2022, section 4.3). Scored decoding ranks all completions of the grammar by their advantages,
beside which the policy's log probabilities may count; what they share is read once. Where values
are exact, Q(s_t, a_t) = γ V(s_{t+1}), and the advantage of a completion is the sum over its tokens
and, but for γ, also the value of its last token less V(s); learnt ones differ, see
`RankingConfig`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lactchain.config.settings import GuidedActorConfig
from lactchain.errors import ConfigError, DataError
from lactchain.functional.ties import is_greatest
from lactchain.models.attention import finished_logits
from lactchain.models.generation.cascade import CascadeTrunk
from lactchain.models.generation.decoding import Decoder, check_finite
from lactchain.models.generation.enumeration import (
    Combine,
    rows_at_once,
    token_tree,
    weigh_completions,
)
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.runs.run import Run
from lactchain.types import Action, ChainGrammar, Trajectory
from lactchain_extras.token_values.model import ValueModel
from lactchain_extras.token_values.recording import record_token_values

MAX_COMPLETIONS = 4096
"""Completions that are ranked at most."""

MEMORY = 4_000_000
"""Scores that are kept, about: a policy without dice meets the same states again and again."""


class TrainedValues:
    """The values in a folder, loaded when they are needed, to act with.

    Attributes:
        weight: β.
        ranking: how completions are ranked.

    Raises:
        ConfigError: they were trained with another instruction than the actor is given.
        DataError: the folder is damaged, or belongs to another tokenizer.
    """

    def __init__(self, config: GuidedActorConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self.weight, self.ranking = config.value_weight, config.ranking
        self._config = config
        self._directory = Path(config.values)
        meaning, theirs = self.target.meaning, self.target.tokenizer
        if meaning.strategy != config.strategy:
            trained = f"{meaning.strategy!r}, as {self._directory} was trained with"
            raise ConfigError(f"actor.strategy: expected {trained}, got {config.strategy!r}")
        if theirs.get_vocab() != tokenizer.get_vocab():
            other = f"was trained with another tokenizer than that of {config.model}"
            mend = "give the actor that it began with as actor.model"
            raise DataError(f"{self._directory}: {other}; {mend}")

    @cached_property
    def online(self) -> ValueModel:
        """The trained model, for V."""
        return ValueModel.load(self._directory, self._config)

    @cached_property
    def target(self) -> ValueModel:
        """Its target network, for Q̂; the trained one where there is no other."""
        return self.online.target_network() if self.online.target else self.online

    def decoder(self, *args: Any, **kwargs: Any) -> Decoder:
        """A decoder that these values guide; arguments as there."""
        return GuidedDecoder(self, *args, **kwargs)

    def rank(self, *args: Any) -> "CompletionRanking":
        """The ranking of all completions of a grammar; arguments and errors as there."""
        return CompletionRanking(self, *args)

    def record(
        self, run: Run, template: PromptTemplate, trajectories: Sequence[Trajectory]
    ) -> None:
        """Writes RUN/token_values of some episodes: `recording`."""
        record_token_values(run, self.online, template, trajectories)


class GuidedDecoder(Decoder):
    """Adds β min_i Q̂_i(s, ·) to the logits of a policy, whose texts the values' trunk reads along.

    V(s) is the same for every token, and falls out of the softmax.
    """

    def __init__(self, values: TrainedValues, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._values = values
        own = CascadeTrunk(values.target.trunk, self._trunk.prefix_ids)
        self._trunk = PairedTrunk(self._trunk, own)

    def _logits(self, hidden: tuple[Tensor, Tensor]) -> Tensor:
        of_policy, of_values = hidden
        check_finite(of_values)
        least = self._values.target.least_q(of_values, self._columns)
        return super()._logits(of_policy) + self._values.weight * least


class PairedTrunk:
    """Two trunks that read the same texts, as one; hidden states come in pairs."""

    def __init__(self, *trunks: CascadeTrunk) -> None:
        self._trunks = trunks
        self.model, self.prefix_ids = trunks[0].model, trunks[0].prefix_ids
        self.bytes_per_column = sum(trunk.bytes_per_column for trunk in trunks)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """As of each trunk."""
        one, other = self._trunks
        with one.in_use(), other.in_use():
            yield

    def read(
        self, prompts: Sequence[Sequence[int]], **kwargs: Any
    ) -> tuple["PairedCache", Tensor, tuple[Tensor, ...]]:
        """`CascadeTrunk.read` by each trunk."""
        parts = [trunk.read(prompts, **kwargs) for trunk in self._trunks]
        caches, lengths, hidden = zip(*parts, strict=True)
        return PairedCache(caches), lengths[0], hidden

    def feed(
        self, blocks: Tensor, lengths: Tensor, caches: "PairedCache"
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """`CascadeTrunk.feed` by each trunk."""
        both = zip(self._trunks, caches, strict=True)
        hidden, lengths = zip(*(t.feed(blocks, lengths, cache) for t, cache in both), strict=True)
        return hidden, lengths[0]


class PairedCache(tuple):
    """The rows' caches of both trunks."""

    def select(self, rows: Tensor) -> "PairedCache":
        """As of each cache."""
        return PairedCache(cache.select(rows) for cache in self)

    def branch(self, rows: Tensor, room: int) -> "PairedCache":
        """As of each cache."""
        return PairedCache(cache.branch(rows, room) for cache in self)


class CompletionRanking:
    """Advantages of all completions of a grammar, in any state.

    Args:
        policy: the cloned policy, whose log probabilities count beside the advantages.

    Attributes:
        actions: the C completions.

    Raises:
        ConfigError: the grammar has too many completions.
    """

    def __init__(
        self,
        values: TrainedValues,
        grammar: ChainGrammar,
        template: PromptTemplate,
        policy: PreTrainedModel,
    ) -> None:
        if (count := grammar.num_completions) > MAX_COMPLETIONS:
            most = f"at most {MAX_COMPLETIONS} completions, the grammar has {count}"
            mend = "lower environment.max_chain_length, or use free or constrained decoding"
            raise ConfigError(f"actor.decoding: scored by values expects {most}; {mend}")
        texts = list(grammar.completions())
        ids = encode_completions([Action(text) for text in texts], values.target.tokenizer)
        rows = zip(texts, ids, strict=True)
        self.actions = [Action(text, tuple(row), (0.0,) * len(row)) for text, row in rows]
        columns = sorted({token for row in ids for token in row})
        self._columns = torch.tensor(columns, device=values.target.trunk.device)
        # One number for all that begin alike: computed again it would differ in its last bit.
        first, self._first = np.unique([row[0] for row in ids], return_inverse=True)
        self._first_tokens = torch.from_numpy(first).to(self._columns.device)
        self._tree = token_tree(ids, columns)
        gamma = values.target.meaning.gamma
        self._discounts = np.array([gamma ** (len(row) - 1) for row in ids], dtype=np.float32)
        self._template, self._values, self._policy = template, values, policy
        trunks = values.target.trunk, values.online.trunk
        self._trunks = [CascadeTrunk(trunk, template.prefix_ids) for trunk in trunks]
        self._known: dict[str, np.ndarray] = {}

    def best(self, observations: Sequence[str]) -> list[Action]:
        """The best completion in each of B states."""
        lengths = np.array([len(action.text) for action in self.actions])
        return [self.actions[number] for number in best_of(self.scores(observations), lengths)]

    def scores(self, observations: Sequence[str]) -> np.ndarray:
        """What ranks the completions in each of B states, (B, C): A + weight · log(π_β + floor)."""
        if len(self._known) * len(self.actions) > MEMORY:
            self._known.clear()
        new = [text for text in dict.fromkeys(observations) if text not in self._known]
        if new:
            scores, ranking = self.advantages(new), self._values.ranking
            if ranking.policy_weight:
                policy = CascadeTrunk(self._policy, self._template.prefix_ids)
                log_probs = self._weigh(new, policy, self._log_prob)
                log_floor = math.log(ranking.policy_floor) if ranking.policy_floor else -math.inf
                scores = scores + ranking.policy_weight * np.logaddexp(log_probs, log_floor)
            self._known |= zip(new, scores, strict=True)
        return np.stack([self._known[text] for text in observations])

    def advantages(self, observations: Sequence[str]) -> np.ndarray:
        """What each completion is worth in each of B states, (B, C).

        By the ranking "sum" Σ_t (min_i Q̂_i − V); by "first" min_i Q̂_i of the first token minus
        V(s); by "last" γ^{n−1} min_i Q̂_i of the n-th token, the last one, minus V(s).
        """
        target, online = self._trunks
        least_q = self._values.target.least_q
        if self._values.ranking.by == "first":
            of_first = partial(least_q, columns=self._first_tokens)
            q = self._at_prompts(observations, target, of_first)[:, self._first]
            return q - self.state_values(observations)[:, None]
        of_tokens = partial(least_q, columns=self._columns)
        if self._values.ranking.by == "last":
            last = self._weigh(observations, target, of_tokens, lambda _, step: step)
            return last * self._discounts - self.state_values(observations)[:, None]
        v_head, width = self._values.online.v_head, len(self._columns)
        v = self._weigh(observations, online, lambda hidden: v_head(hidden).expand(-1, width))
        return self._weigh(observations, target, of_tokens) - v

    def state_values(self, observations: Sequence[str]) -> np.ndarray:
        """V(s) of B states (B,), before the first token of a completion."""
        v_head = self._values.online.v_head
        return self._at_prompts(observations, self._trunks[1], v_head)[:, 0]

    @torch.inference_mode()
    def _at_prompts(
        self, observations: Sequence[str], trunk: CascadeTrunk, values: Callable[[Tensor], Tensor]
    ) -> np.ndarray:
        """Values (B, ...) of the hidden states behind B prompts."""
        prompts = self._template.encode_batch(observations)
        size = rows_at_once(self._tree, trunk, prompts)
        parts = []
        with trunk.in_use():
            for i in range(0, len(prompts), size):
                _, _, hidden = trunk.read(prompts[i : i + size])
                parts.append(values(hidden))
        return torch.cat(parts).cpu().numpy()

    def _log_prob(self, hidden: Tensor) -> Tensor:
        logits = self._policy.get_output_embeddings()(hidden)
        logits = finished_logits(self._policy.config, logits)
        return logits.float().log_softmax(-1)[:, self._columns]

    def _weigh(
        self,
        observations: Sequence[str],
        trunk: CascadeTrunk,
        values: Callable[[Tensor], Tensor],
        combine: Combine = np.add,
    ) -> np.ndarray:
        """What the completions weigh in B states, (B, C), by the values of their tokens."""
        return weigh_completions(
            self._tree,
            trunk,
            self._template.encode_batch(observations),
            lambda hidden, _: values(hidden),
            combine,
            np.float32(0.0),
        )


def best_of(scores: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The place of the best of C candidates, (...); of equals the shortest, of these the first.

    Args:
        scores: (..., C).
        lengths: of the candidates' texts, (..., C) or (C,).
    """
    return np.where(is_greatest(scores), lengths, np.inf).argmin(axis=-1)
