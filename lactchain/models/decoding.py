"""Batched sampling from a causal language model: free, constrained, and scored.

One loop serves both kinds of sampling. A row is fed a block of tokens, the model gives the
distribution of the next one, the row draws from its own random stream, and rows that are done
leave the batch. Constrained rows draw from the legal tokens only and are fed, in one block, every
token that follows without a choice ("jump-forward", SGLang, Zheng et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from lactchain.models.automaton import ACCEPT, ChainAutomaton
from lactchain.models.cascade import RowCache, prefix_keys_values, use_cascade

# Dropping finished rows copies the cache of the others: worth it once this share has finished.
COMPACT_BELOW = 0.75


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, end of sequence included, and the log-probability each was drawn with."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: str


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
        temperature: divides the logits; 0 takes the most probable token.
        automaton: of legal answers, for constrained sampling; None samples freely.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_token_id: int,
        prefix_ids: Sequence[int] = (),
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        automaton: ChainAutomaton | None = None,
    ) -> None:
        self.model = model
        self.eos_token_id = eos_token_id
        self.prefix_ids = tuple(prefix_ids)
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.automaton = automaton
        self.device = model.device
        self._backbone = model.get_decoder()
        self._prefix = prefix_keys_values(model, self.prefix_ids)
        head = model.get_output_embeddings()
        self._head = (head.weight, head.bias)
        if automaton is not None:
            columns = torch.from_numpy(automaton.tokens).to(self.device)
            self._head = tuple(None if part is None else part[columns] for part in self._head)
            self._illegal = torch.from_numpy(~automaton.legal).to(self.device)

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Completion]:
        """One answer to each of B prompts; equal prompts are read once and branched.

        Args:
            prompts: B lists of token ids, each beginning with the decoder's prefix.
            seeds: B row seeds, each below 2**64.
        """
        if not prompts:
            return []
        rows = [_Row() for _ in prompts]
        active = np.arange(len(rows))
        seeds = np.array(seeds, dtype=np.uint64)
        with use_cascade(self.model):
            cache, lengths, logprobs = self._read_distinct(prompts, rows)
            step = 0
            while True:
                tokens, drawn = self._draw(logprobs, uniforms(seeds[active], step))
                blocks = [
                    self._advance(rows[i], token, logprob)
                    for i, token, logprob in zip(active, tokens, drawn, strict=True)
                ]
                (keep,) = np.nonzero([rows[i].stop_reason == "" for i in active])
                if not keep.size:
                    break
                if keep.size <= COMPACT_BELOW * active.size:
                    chosen = torch.from_numpy(keep).to(self.device)
                    cache, lengths = cache.select(chosen), lengths[chosen]
                    active, blocks = active[keep], [blocks[i] for i in keep]
                hidden, lengths = self._feed(blocks, lengths, cache)
                logprobs = self._logprobs(hidden, np.array([rows[i].state for i in active]))
                step += 1
        return [row.completion() for row in rows]

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
        nodes = [_Row()]
        answers: list[tuple[int, ...]] = []
        probabilities: list[np.ndarray] = []
        with use_cascade(self.model):
            cache, lengths, logprobs = self._read(prompts, self._begin(nodes[0]))
            path = torch.zeros(len(prompts), 1, dtype=torch.float64, device=self.device)
            while nodes:
                path = path[:, :, None] + logprobs.view(len(prompts), len(nodes), -1).double()
                nodes, parents, columns, blocks, done = self._branch(nodes)
                answers += [tuple(row.tokens) for row, _, _ in done]
                ended = path[:, [parent for _, parent, _ in done], [c for _, _, c in done]]
                probabilities.append(ended.exp().cpu().numpy())
                if not nodes:
                    break
                starts = np.arange(len(prompts))[:, None] * logprobs.shape[0] // len(prompts)
                chosen = torch.from_numpy((starts + np.array(parents)).ravel()).to(self.device)
                path = path[:, parents, columns]
                cache, lengths = cache.select(chosen), lengths[chosen]
                hidden, lengths = self._feed(blocks * len(prompts), lengths, cache)
                states = np.tile([node.state for node in nodes], len(prompts))
                logprobs = self._logprobs(hidden, states)
        return answers, np.concatenate(probabilities, axis=1)

    def _branch(self, nodes: list[_Row]) -> tuple[list, list, list, list, list]:
        """All legal continuations of the nodes: those that go on, and those that end an answer."""
        onward, parents, columns, blocks, done = [], [], [], [], []
        for parent, node in enumerate(nodes):
            for column in np.flatnonzero(self.automaton.legal[node.state]):
                child = node.copy()
                block = self._advance(child, int(column), 0.0)
                if child.stop_reason:
                    done.append((child, parent, int(column)))
                else:
                    onward.append(child)
                    parents.append(parent)
                    columns.append(int(column))
                    blocks.append(block)
        return onward, parents, columns, blocks, done

    def _begin(self, row: _Row) -> list[int]:
        """The tokens that every answer begins with; they are read together with the prompt."""
        if self.automaton is None:
            return []
        run, row.state = self.automaton.forced[0]
        forced = [int(self.automaton.tokens[column]) for column in run]
        row.extend(forced, [0.0] * len(forced))
        return forced

    def _read_distinct(
        self, prompts: Sequence[Sequence[int]], rows: list[_Row]
    ) -> tuple[RowCache, Tensor, Tensor]:
        """Reads each distinct prompt once, and branches it into the rows that share it."""
        forced = [self._begin(row) for row in rows][0]
        distinct: dict[tuple[int, ...], int] = {}
        index = [distinct.setdefault(tuple(prompt), len(distinct)) for prompt in prompts]
        cache, lengths, logprobs = self._read(list(distinct), forced)
        if len(distinct) == len(rows):
            return cache, lengths, logprobs
        chosen = torch.tensor(index, device=self.device)
        return cache.select(chosen), lengths[chosen], logprobs[chosen]

    def _read(
        self, prompts: Sequence[Sequence[int]], forced: list[int]
    ) -> tuple[RowCache, Tensor, Tensor]:
        """Feeds the prompts; returns their cache, lengths (B,) and log-probabilities (B, M)."""
        start = len(self.prefix_ids)
        blocks = [[*prompt[start:], *forced] for prompt in prompts]
        longest = max(len(block) for block in blocks)
        cache = RowCache(len(blocks), longest + self._room(), self.device)
        lengths = torch.full((len(blocks),), start, device=self.device)
        hidden, lengths = self._feed(blocks, lengths, cache)
        state = 0 if self.automaton is None else self.automaton.forced[0][1]
        return cache, lengths, self._logprobs(hidden, np.full(len(blocks), state))

    def _room(self) -> int:
        """Columns to preallocate for an answer; the cache grows when it needs more."""
        return self.max_new_tokens if self.automaton is None else self.automaton.longest

    def _feed(
        self, blocks: Sequence[Sequence[int]], lengths: Tensor, cache: RowCache
    ) -> tuple[Tensor, Tensor]:
        """Feeds each row its block, padded on the left; returns the last hidden state (B, D)."""
        width = max(len(block) for block in blocks)
        padded = np.zeros((len(blocks), width), dtype=np.int64)
        sizes = np.array([len(block) for block in blocks])
        for row, block in enumerate(blocks):
            padded[row, width - len(block) :] = block
        ids = torch.from_numpy(padded).to(self.device)
        padding = torch.from_numpy(width - sizes).to(self.device)
        offsets = torch.arange(width, device=self.device) - padding[:, None]
        hidden = self._backbone(
            input_ids=ids,
            position_ids=(lengths[:, None] + offsets).clamp_min(0),
            attention_mask=cache.append(offsets >= 0, self.model.dtype),
            past_key_values=cache,
            use_cache=True,
            prefix=self._prefix,
        ).last_hidden_state
        return hidden[:, -1], lengths + width - padding

    def _logprobs(self, hidden: Tensor, states: np.ndarray) -> Tensor:
        """Log-probabilities (B, M) of the next token, at the decoder's temperature."""
        logits = functional.linear(hidden, *self._head).float()
        if self.automaton is not None:
            illegal = self._illegal[torch.from_numpy(states).to(self.device)]
            logits = logits.masked_fill(illegal, -torch.inf)
        return functional.log_softmax(logits / (self.temperature or 1.0), dim=-1)

    def _draw(self, logprobs: Tensor, uniform: np.ndarray) -> tuple[list[int], list[float]]:
        """Inverse-distribution sampling: the first token whose cumulated probability exceeds u."""
        if self.temperature == 0:
            drawn = logprobs.argmax(-1, keepdim=True)
        else:
            cumulated = logprobs.double().exp().cumsum(-1)
            # A hair below the total, so that rounding never lands behind the last legal token.
            u = torch.from_numpy(uniform * (1 - 1e-12)).to(self.device)[:, None]
            drawn = torch.searchsorted(cumulated, u * cumulated[:, -1:], right=True)
        return drawn[:, 0].tolist(), logprobs.gather(-1, drawn)[:, 0].tolist()

    def _advance(self, row: _Row, column: int, logprob: float) -> list[int]:
        """Says one drawn token, and all that follow it without a choice; returns the block."""
        if row.stop_reason:  # done, and in the batch until the next compaction
            return [self.eos_token_id]
        if self.automaton is None:
            row.extend([column], [logprob])
            if column == self.eos_token_id:
                row.stop_reason = "stop"
            elif len(row.tokens) >= self.max_new_tokens:
                row.stop_reason = "length"
            return [column]
        state = self.automaton.next_state[row.state, column]
        run, row.state = ((), ACCEPT) if state == ACCEPT else self.automaton.forced[state]
        block = [int(self.automaton.tokens[c]) for c in (column, *run)]
        row.extend(block, [logprob] + [0.0] * len(run))
        if row.state == ACCEPT:
            row.stop_reason = "stop"
        return block


class _Row:
    """An answer under way."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.state = 0
        self.stop_reason = ""

    def extend(self, tokens: list[int], logprobs: list[float]) -> None:
        self.tokens += tokens
        self.logprobs += logprobs

    def copy(self) -> _Row:
        twin = _Row()
        twin.tokens, twin.logprobs = list(self.tokens), list(self.logprobs)
        twin.state = self.state
        return twin

    def completion(self) -> Completion:
        return Completion(tuple(self.tokens), tuple(self.logprobs), self.stop_reason)
