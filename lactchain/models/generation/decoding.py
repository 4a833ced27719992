"""Batched sampling from a causal language model, free and constrained, by one loop.

A row is fed a block of tokens, the model gives the distribution of the next one, the row draws from
its own random stream, and rows that are done leave the batch. Constrained rows draw from the legal
tokens only and are fed, in one block, every token that follows without a choice ("jump-forward",
SGLang, Zheng et al. 2024).
"""

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from lactchain.errors import NonFiniteError
from lactchain.functional.random_streams import uniform
from lactchain.models.attention import context_length, finished_logits
from lactchain.models.generation.automaton import ACCEPT, ChainAutomaton
from lactchain.models.generation.cascade import COLUMNS, CascadeTrunk, RowCache, trimmed
from lactchain.models.generation.enumeration import chain_tree, token_tree, weigh_completions
from lactchain.types import Action

# Dropping finished rows copies the cache of the others: worth it once this share has finished.
COMPACT_BELOW = 0.75


class Decoder:
    """Samples completions from one version of a policy.

    Make a new one after every weight update: it keeps the keys and values of the shared prefix.

    Args:
        model: a causal language model of the library; an adapter may stay beside its weights.
        prefix_ids: the tokens that all prompts begin with; they are computed once.
        max_new_tokens: the longest completion, in tokens, of free sampling.
        temperature: divides the logits; 0 takes the most probable token, and probabilities are
            then those of the model itself (temperature 1).
        automaton: of legal completions, for constrained sampling; None samples freely.

    Attributes:
        longest_completion: most tokens that a completion has.
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
        self.temperature = temperature
        self.automaton = automaton
        self.device = model.device
        self._trunk = CascadeTrunk(model, prefix_ids)
        # What every completion begins with; it is read together with the prompt.
        self._opening, self._start, self.longest_completion = (), 0, max_new_tokens
        self._columns: Tensor | None = None
        head = model.get_output_embeddings()
        self._head = (head.weight, head.bias)
        if automaton is not None:
            self._opening, self._start = automaton.opening, automaton.start
            self.longest_completion = automaton.longest
            self._columns = self._on_device(automaton.tokens)
            self._head = tuple(None if p is None else p[self._columns] for p in self._head)
            self._illegal = ~self._on_device(automaton.legal)

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Action]:
        """One completion, without its text, to each of B prompts; equal ones are read once.

        Args:
            prompts: token ids, each beginning with the decoder's prefix.
            seeds: of the rows, each below 2**64.

        Raises:
            ValueError: a prompt does not begin with the prefix, ends with it, or is too long.
            NonFiniteError: the model computes NaN or infinities.
        """
        if not prompts:
            return []
        most, needed = context_length(self.model.config), max(map(len, prompts))
        if most is not None and needed + self.longest_completion > most:
            raise ValueError(f"prompts: expected room in the {most} tokens that the model reads")
        seeds = np.array(seeds, dtype=np.uint64)
        written = [list(self._opening) for _ in prompts]
        logprobs = [[0.0] * len(self._opening) for _ in prompts]
        rows, states = np.arange(len(prompts)), np.full(len(prompts), self._start)
        with self._trunk.in_use():
            cache, lengths, probabilities = self._read_distinct(prompts)
            for step in range(self.longest_completion):
                columns, drawn = self._draw(probabilities, uniform(seeds[rows], step))
                blocks, states = self._advance(states, columns)
                for row, block, first in zip(rows, blocks.tolist(), drawn.tolist(), strict=True):
                    new = [token for token in block if token >= 0]
                    written[row] += new
                    # Only the first was drawn; what follows it without a choice is certain.
                    logprobs[row] += [first, *repeat(0.0, len(new) - 1)] if new else []
                (keep,) = np.nonzero(states != ACCEPT)
                if not len(keep) or step == self.longest_completion - 1:
                    break
                if len(keep) <= COMPACT_BELOW * len(rows):
                    kept = self._on_device(keep)
                    cache, lengths = cache.select(kept), lengths[kept]
                    rows, states, blocks = rows[keep], states[keep], blocks[keep]
                fed = self._on_device(trimmed(blocks))
                hidden, lengths = self._trunk.feed(fed, lengths, cache)
                probabilities = self._probabilities(hidden, states)
        return [
            Action("", tuple(ids), tuple(row), "stop" if ids[-1] == self.eos_token_id else "length")
            for ids, row in zip(written, logprobs, strict=True)
        ]

    @torch.inference_mode()
    def enumerate(
        self, prompts: Sequence[Sequence[int]]
    ) -> tuple[list[tuple[int, ...]], np.ndarray]:
        """All C legal completions, in token ids, and their probabilities for B prompts, (B, C).

        Each text of the tree of completions is read once for a prompt, depth first, as many at a
        time as `CACHE_BYTES` hold; it pays above about a dozen samples a prompt. The tree has as
        many leaves as there are chains: keep it to a few thousand. `ValueError` without automaton.
        """
        if self.automaton is None:
            raise ValueError("enumerate: expected a constrained decoder, got a free one")
        tree, states = chain_tree(self.automaton)

        def score(hidden: Tensor, nodes: np.ndarray) -> Tensor:
            return self._probabilities(hidden, states[nodes])

        one = np.float64(1.0)
        weights = weigh_completions(tree, self._trunk, prompts, score, np.multiply, one)
        return tree.completions, weights

    @torch.inference_mode()
    def log_probs(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> np.ndarray:
        """How probable each of C completions is behind each of B prompts, (B, C) logarithms.

        They are different; `ValueError` if one begins another, or the decoder is constrained.
        """
        if self.automaton is not None:
            raise ValueError("log_probs: expected a free decoder, got a constrained one")
        columns = sorted({token for completion in completions for token in completion})
        tree = token_tree(completions, columns)

        def score(hidden: Tensor, nodes: np.ndarray) -> Tensor:
            return self._probabilities(hidden, nodes)[:, columns].log()

        return weigh_completions(tree, self._trunk, prompts, score, np.add, np.float64(0.0))

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _read_distinct(self, prompts: Sequence[Sequence[int]]) -> tuple[RowCache, Tensor, Tensor]:
        """Reads each distinct prompt once, and branches it into the rows that share it."""
        distinct: dict[tuple[int, ...], int] = {}
        index = [distinct.setdefault(tuple(prompt), len(distinct)) for prompt in prompts]
        room = min(self.longest_completion, COLUMNS)
        cache, lengths, hidden = self._trunk.read(list(distinct), opening=self._opening, room=room)
        probabilities = self._probabilities(hidden, np.full(len(distinct), self._start))
        if len(distinct) == len(prompts):
            return cache, lengths, probabilities
        chosen = torch.tensor(index, device=self.device)
        return cache.select(chosen), lengths[chosen], probabilities[chosen]

    def _logits(self, hidden: Tensor) -> Tensor:
        """Of all tokens, or of those that the automaton knows, (B, M), by hidden states (B, D)."""
        check_finite(hidden)
        logits = functional.linear(hidden, *self._head)
        return finished_logits(self.model.config, logits).float()

    def _probabilities(self, hidden: Tensor, states: np.ndarray) -> Tensor:
        """Probabilities (B, M) of the next token in states (B,), at the decoder's temperature."""
        logits = self._logits(hidden)
        if self.automaton is not None:
            logits.masked_fill_(self._illegal[self._on_device(states)], -torch.inf)
        # Colder than that, logits are infinite in float32.
        return functional.softmax(logits / max(self.temperature or 1.0, 1e-30), dim=-1)

    def _draw(self, probabilities: Tensor, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns (B,) drawn where the cumulated probability exceeds u, and log-probabilities."""
        if self.temperature == 0:
            columns = probabilities.argmax(-1, keepdim=True)
        else:
            cumulated = probabilities.cumsum(-1, dtype=torch.float64)
            # Slightly below the total, so that rounding never lands behind the last legal token.
            u = self._on_device(uniform * (1 - 1e-12))[:, None]
            columns = torch.searchsorted(cumulated, u * cumulated[:, -1:], right=True)
        logprobs = probabilities.gather(-1, columns).log()
        # Both at once: an accelerator stands still while its host waits for a copy.
        drawn = torch.cat([columns, logprobs], dim=-1).double().cpu().numpy()
        return drawn[:, 0].astype(np.int64), drawn[:, 1]

    def _advance(self, states: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The drawn tokens with those that follow without a choice (B, W); the states behind (B,).

        Rows that are done, and in the batch until the next compaction, say nothing: their block is
        all padding.
        """
        done = states == ACCEPT
        if self.automaton is None:
            blocks = columns[:, None]
            after = np.where(columns == self.eos_token_id, ACCEPT, 0)
        else:
            blocks = self.automaton.blocks[states, columns]
            after = self.automaton.after[states, columns]
        return np.where(done[:, None], -1, blocks), np.where(done, ACCEPT, after)


def check_finite(hidden: Tensor) -> None:
    """Raises `NonFiniteError` where a model computes NaN or infinities."""
    if not hidden.isfinite().all():
        raise NonFiniteError(
            "the actor computes NaN or infinities: its weights are damaged, or too large for "
            f"{hidden.dtype}"
        )
