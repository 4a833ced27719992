"""Batched sampling from a causal language model: free, constrained, and scored.

One loop serves both kinds of sampling. A row is fed a block of tokens, the model gives the
distribution of the next one, the row draws from its own random stream, and rows that are done
leave the batch. Constrained rows draw from the legal tokens only and are fed, in one block, every
token that follows without a choice ("jump-forward", SGLang, Zheng et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from lactchain.errors import NonFiniteError
from lactchain.models.automaton import ACCEPT, ChainAutomaton
from lactchain.models.cascade import CascadeTrunk, RowCache, use_cascade
from lactchain.models.families import finished_logits

# Dropping finished rows copies the cache of the others: worth it once this share has finished.
COMPACT_BELOW = 0.75


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, end of sequence included, and the log-probability each was drawn with."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: str


class TokenGuide(Protocol):
    """Values of the next token by a model of its own, which the decoder feeds along.

    Attributes:
        model: a causal language model.
        weight: the factor on its values, β.
    """

    model: PreTrainedModel
    weight: float

    def q(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        """Values (B, V) of all tokens, or of some, from the last hidden state (B, D) of `model`."""
        ...


Caches = tuple[RowCache, ...]
"""Of the policy's trunk, and of the guide's where there is one."""


def uniforms(seeds: np.ndarray, step: int) -> np.ndarray:
    """One number in [0, 1) per row (B,), a function of the row's seed and the step alone.

    A counter-based generator (SplitMix64, Steele et al. 2014): rows need no generator objects, and
    a row draws the same whatever else is in the batch.
    """
    with np.errstate(over="ignore"):
        z = seeds.astype(np.uint64) + np.uint64(step + 1) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Decoder:
    """Samples answers from one version of a policy.

    Make a new one after every weight update: it keeps the keys and values of the shared prefix.

    Args:
        model: a causal language model of the library; merge LoRA into a copy first, for speed.
        eos_token_id: ends an answer.
        prefix_ids: the tokens that all prompts begin with; they are computed once.
        max_new_tokens: the longest answer, in tokens, of free sampling.
        temperature: divides the logits; 0 takes the most probable token, and probabilities are
            then those of the model itself (temperature 1).
        automaton: of legal answers, for constrained sampling; None samples freely.
        guide: values that are added to the logits; None: the model's own logits alone.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_token_id: int,
        prefix_ids: Sequence[int] = (),
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        automaton: ChainAutomaton | None = None,
        guide: TokenGuide | None = None,
    ) -> None:
        self.model = model
        self.eos_token_id = eos_token_id
        self.prefix_ids = tuple(prefix_ids)
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.automaton = automaton
        self.guide = guide
        self.device = model.device
        models = [model] if guide is None else [model, guide.model]
        self._trunks = [CascadeTrunk(trunk, self.prefix_ids) for trunk in models]
        self._columns: Tensor | None = None
        head = model.get_output_embeddings()
        self._head = (head.weight, head.bias)
        if automaton is not None:
            self._columns = self._on_device(automaton.tokens)
            self._head = tuple(None if p is None else p[self._columns] for p in self._head)
            self._illegal = ~self._on_device(automaton.legal)
            self._blocks = self._on_device(automaton.blocks)
            self._after = self._on_device(automaton.after)

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Completion]:
        """One answer to each of B prompts; equal prompts are read once and branched.

        Args:
            prompts: B lists of token ids, each beginning with the decoder's prefix.
            seeds: B row seeds, each below 2**64.

        Raises:
            ValueError: a prompt does not begin with the prefix, or ends with it.
            NonFiniteError: the model computes NaN or infinities.
        """
        if not prompts:
            return []
        seeds = np.array(seeds, dtype=np.uint64)
        answers = _Answers(len(prompts), self._opening)
        rows = torch.arange(len(prompts))
        with self._cascade():
            caches, lengths, probabilities = self._read_distinct(prompts)
            states = torch.full((len(prompts),), self._start, device=self.device)
            for step in range(self.longest_answer):
                columns, drawn = self._draw(probabilities, uniforms(seeds[rows.numpy()], step))
                blocks, states = self._advance(states, columns)
                answers.add(rows, blocks, drawn)
                (keep,) = torch.nonzero(states != ACCEPT, as_tuple=True)
                if not len(keep) or step == self.longest_answer - 1:
                    break
                if len(keep) <= COMPACT_BELOW * len(rows):
                    caches, lengths = _select(caches, keep), lengths[keep]
                    rows, states, blocks = rows[keep.cpu()], states[keep], blocks[keep]
                probabilities, lengths = self._feed(_trimmed(blocks), lengths, caches, states)
        return answers.completions(self.eos_token_id)

    @torch.inference_mode()
    def enumerate(
        self, prompts: Sequence[Sequence[int]]
    ) -> tuple[list[tuple[int, ...]], np.ndarray]:
        """The exact distribution over all C legal answers, for each of B prompts.

        One pass over the tree of answers, level by level; it pays above about a dozen samples a
        prompt. The tree has as many leaves as there are chains: keep it to a few thousand.

        Returns:
            the token ids of each answer (C), and their probabilities (B, C).

        Raises:
            ValueError: the decoder has no automaton, so there is no list of answers.
        """
        if self.automaton is None:
            raise ValueError("enumerate: expected a constrained decoder, got a free one")
        count = len(prompts)
        paths = [self.automaton.opening]
        reached = torch.ones(count, 1, dtype=torch.float64, device=self.device)
        answers: list[tuple[int, ...]] = []
        ended: list[Tensor] = []
        with self._cascade():
            caches, lengths, probabilities = self._read(prompts)
            states = torch.tensor([self.automaton.start], device=self.device)
            while True:
                parents, columns = torch.nonzero(~self._illegal[states], as_tuple=True)
                chosen = probabilities.view(count, len(paths), -1)[:, parents, columns]
                reached = reached[:, parents] * chosen
                blocks, states = self._advance(states[parents], columns)
                paths = [
                    paths[parent] + tuple(token for token in block if token >= 0)
                    for parent, block in zip(parents.tolist(), blocks.tolist(), strict=True)
                ]
                (done,) = torch.nonzero(states == ACCEPT, as_tuple=True)
                (onward,) = torch.nonzero(states != ACCEPT, as_tuple=True)
                answers += [paths[i] for i in done]
                ended.append(reached[:, done])
                if not len(onward):
                    return answers, torch.cat(ended, dim=1).cpu().numpy()
                first = torch.arange(0, len(lengths), len(lengths) // count, device=self.device)
                rows = (first[:, None] + parents[onward]).flatten()
                caches, lengths = _select(caches, rows), lengths[rows]
                paths, states = [paths[i] for i in onward], states[onward]
                reached = reached[:, onward]
                blocks = _trimmed(blocks[onward]).repeat(count, 1)
                later = states.repeat(count)
                probabilities, lengths = self._feed(blocks, lengths, caches, later)

    @property
    def _opening(self) -> tuple[int, ...]:
        """The tokens that every answer begins with; they are read together with the prompt."""
        return () if self.automaton is None else self.automaton.opening

    @property
    def _start(self) -> int:
        return 0 if self.automaton is None else self.automaton.start

    @property
    def longest_answer(self) -> int:
        """Most tokens that an answer has."""
        return self.max_new_tokens if self.automaton is None else self.automaton.longest

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    @contextmanager
    def _cascade(self) -> Iterator[None]:
        with ExitStack() as stack:
            for trunk in self._trunks:
                stack.enter_context(use_cascade(trunk.model))
            yield

    def _read_distinct(self, prompts: Sequence[Sequence[int]]) -> tuple[Caches, Tensor, Tensor]:
        """Reads each distinct prompt once, and branches it into the rows that share it."""
        distinct: dict[tuple[int, ...], int] = {}
        index = [distinct.setdefault(tuple(prompt), len(distinct)) for prompt in prompts]
        caches, lengths, probabilities = self._read(list(distinct))
        if len(distinct) == len(prompts):
            return caches, lengths, probabilities
        chosen = torch.tensor(index, device=self.device)
        return _select(caches, chosen), lengths[chosen], probabilities[chosen]

    def _read(self, prompts: Sequence[Sequence[int]]) -> tuple[Caches, Tensor, Tensor]:
        """Feeds the prompts; returns their caches, lengths (B,) and probabilities (B, M)."""
        parts = [trunk.read(prompts, self._opening, self.longest_answer) for trunk in self._trunks]
        caches, lengths, hidden = zip(*parts, strict=True)
        states = torch.full((len(prompts),), self._start, device=self.device)
        return caches, lengths[0], self._probabilities(hidden, states)

    def _feed(
        self, blocks: Tensor, lengths: Tensor, caches: Caches, states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Feeds each row its block (B, W); returns probabilities (B, M) and the new lengths."""
        parts = [
            trunk.feed(blocks, lengths, cache)
            for trunk, cache in zip(self._trunks, caches, strict=True)
        ]
        hidden, lengths = zip(*parts, strict=True)
        return self._probabilities(hidden, states), lengths[0]

    def _probabilities(self, hidden: Sequence[Tensor], states: Tensor) -> Tensor:
        """Probabilities (B, M) of the next token, at the decoder's temperature.

        Args:
            hidden: (B, D) of the policy, and of the guide where there is one.
            states: (B,) of the automaton.
        """
        if not all(h.isfinite().all() for h in hidden):
            raise NonFiniteError(
                "the actor computes NaN or infinities: its weights are damaged, or too large for "
                f"{hidden[0].dtype}"
            )
        logits = functional.linear(hidden[0], *self._head)
        logits = finished_logits(self.model.config, logits).float()
        if self.guide is not None:
            # V(s) is the same for every token, and falls out of the softmax.
            logits += self.guide.weight * self.guide.q(hidden[1], self._columns)
        if self.automaton is not None:
            logits.masked_fill_(self._illegal[states], -torch.inf)
        return functional.softmax(logits / (self.temperature or 1.0), dim=-1)

    def _draw(self, probabilities: Tensor, uniform: np.ndarray) -> tuple[Tensor, Tensor]:
        """Inverse-distribution sampling: the first token whose cumulated probability exceeds u.

        Returns:
            the columns drawn (B,), and their log-probabilities (B,).
        """
        if self.temperature == 0:
            columns = probabilities.argmax(-1, keepdim=True)
        else:
            cumulated = probabilities.cumsum(-1, dtype=torch.float64)
            # A hair below the total, so that rounding never lands behind the last legal token.
            u = self._on_device(uniform * (1 - 1e-12))[:, None]
            columns = torch.searchsorted(cumulated, u * cumulated[:, -1:], right=True)
        return columns[:, 0], probabilities.gather(-1, columns)[:, 0].log()

    def _advance(self, states: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Says the drawn tokens and all that follow them without a choice.

        Rows that are done, and in the batch until the next compaction, say nothing: their block is
        all padding.

        Returns:
            the blocks (B, W) and the states behind them (B,).
        """
        done = states == ACCEPT
        if self.automaton is None:
            blocks = columns[:, None]
            after = torch.where(columns == self.eos_token_id, ACCEPT, 0)
        else:
            blocks, after = self._blocks[states, columns], self._after[states, columns]
        return blocks.masked_fill(done[:, None], -1), after.masked_fill(done, ACCEPT)


def _select(caches: Caches, rows: Tensor) -> Caches:
    return tuple(cache.select(rows) for cache in caches)


def _trimmed(blocks: Tensor) -> Tensor:
    """Blocks (B, W) without the columns that are padding in all of them."""
    return blocks[:, (blocks >= 0).any(dim=0)]


class _Answers:
    """The answers of B rows, as they grow."""

    def __init__(self, count: int, opening: Sequence[int]) -> None:
        self.count = count
        self._tokens = [np.tile(np.array(opening, dtype=np.int64), (count, 1))]
        self._logprobs = [np.zeros((count, len(opening)))]

    def add(self, rows: Tensor, blocks: Tensor, drawn: Tensor) -> None:
        """Appends blocks (n, W) to the rows given; tokens that were not drawn are certain."""
        block_ids = blocks.cpu().numpy()
        tokens = np.full((self.count, block_ids.shape[1]), -1)
        tokens[rows] = block_ids
        first = np.arange(block_ids.shape[1]) == (block_ids < 0).sum(axis=1, keepdims=True)
        logprobs = np.zeros(tokens.shape)
        logprobs[rows] = np.where(first, drawn.cpu().numpy()[:, None], 0.0)
        self._tokens.append(tokens)
        self._logprobs.append(logprobs)

    def completions(self, eos_token_id: int) -> list[Completion]:
        """The answers, end of sequence included."""
        tokens = np.concatenate(self._tokens, axis=1)
        logprobs = np.concatenate(self._logprobs, axis=1)
        said = tokens >= 0
        completions = []
        for row in range(self.count):
            ids = tuple(tokens[row, said[row]].tolist())
            reason = "stop" if ids[-1:] == (eos_token_id,) else "length"
            completions.append(Completion(ids, tuple(logprobs[row, said[row]].tolist()), reason))
        return completions
