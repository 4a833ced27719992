"""What a decoder writes down: answers as they are sampled, and texts as they are enumerated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, end of sequence included, and the log-probability each was drawn with."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: str


class Answers:
    """The answers of B rows, as they grow."""

    def __init__(self, count: int, opening: Sequence[int]) -> None:
        self.count = count
        self._tokens = [np.tile(np.array(opening, dtype=np.int64), (count, 1))]
        self._logprobs = [np.zeros((count, len(opening)))]

    def add(self, rows: np.ndarray, blocks: np.ndarray, drawn: np.ndarray) -> None:
        """Appends blocks (n, W) to the rows given; tokens that were not drawn are certain."""
        tokens = np.full((self.count, blocks.shape[1]), -1)
        tokens[rows] = blocks
        first = np.arange(blocks.shape[1]) == (blocks < 0).sum(axis=1, keepdims=True)
        logprobs = np.zeros(tokens.shape)
        logprobs[rows] = np.where(first, drawn[:, None], 0.0)
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


@dataclass(frozen=True)
class Texts:
    """N beginnings of answers, of which all but the last block has been read.

    Attributes:
        parents: (N,) the row of the cache that each goes on from.
        owners: (N,) the prompt that it answers.
        nodes: (N,) where it is in the tree of answers.
        blocks: (N, W) what it says behind its parent, padded with -1 on the left.
        reached: (N,) how probable it is.
    """

    parents: np.ndarray
    owners: np.ndarray
    nodes: np.ndarray
    blocks: np.ndarray
    reached: np.ndarray

    @classmethod
    def opened(cls, owners: np.ndarray) -> Texts:
        """What every answer opens with, for each of the prompts."""
        count = len(owners)
        zeros = np.zeros(count, dtype=np.int64)
        return cls(np.arange(count), owners, zeros, zeros[:, None], np.ones(count))

    def some(self, rows: np.ndarray | slice) -> Texts:
        """The rows of a mask or slice."""
        return Texts(*(getattr(self, field.name)[rows] for field in fields(self)))

    def split(self, size: int) -> list[Texts]:
        """Parts of at most `size` rows."""
        return [self.some(slice(i, i + size)) for i in range(0, len(self.nodes), size)]
