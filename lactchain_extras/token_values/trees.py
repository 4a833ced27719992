"""Texts as prefix trees: what they share is read once, with its gradient.

Prompts of one policy share the instruction, prompts of one episode their history, and completions
to one state the whole prompt. Sorted by their tokens, sequences are the paths of a tree; its tokens
stand in a row in the order of a depth-first walk, and a token sees its ancestors. Source of the
idea: SpecInfer (Miao et al. 2024, arXiv:2305.09781), here for training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lactchain.functional.tokens import pad
from lactchain.models.attention import common_prefix

ROOM = 2
"""A row is filled up to so many times the longest sequence; attention is quadratic in rows."""

TREES = ("input_ids", "position_ids", "subtree_ends")


@dataclass
class _Row:
    """One tree: its tokens, their depths, and where the subtree of each ends."""

    ids: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    """Places of the tokens of the sequence that was added last."""

    def add(self, sequence: Sequence[int], shared: int) -> list[int]:
        """Adds a sequence whose first tokens are those of the last one; returns its places."""
        self.close(shared)
        for depth in range(shared, len(sequence)):
            self.path.append(len(self.ids))
            self.ids.append(sequence[depth])
            self.depths.append(depth)
            self.ends.append(-1)
        return list(self.path)

    def close(self, depth: int = 0) -> None:
        """Ends the subtrees of all tokens from a depth on."""
        for place in self.path[depth:]:
            self.ends[place] = len(self.ids)
        del self.path[depth:]


@dataclass(frozen=True)
class PrefixTrees:
    """R trees, a row each, padded to L tokens.

    Attributes:
        input_ids, position_ids: (R, L).
        subtree_ends: (R, L); token j is seen by the tokens i with j ≤ i < subtree_ends[j]. 0 where
            there is padding. In a depth-first walk the tokens below j stand in one run behind it,
            so one number for each token says what a mask (L, L) would.
        places: of each sequence, the places of its tokens in the flattened (R · L) rows.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    subtree_ends: np.ndarray
    places: list[np.ndarray]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The trees by name, as the value model takes them."""
        return {name: getattr(self, name) for name in TREES}


def prefix_trees(
    sequences: Sequence[Sequence[int]], pad_token_id: int, capacity: int | None = None
) -> PrefixTrees:
    """Lays out sequences as trees, at most `capacity` tokens each (`ROOM` times the longest)."""
    capacity = capacity or ROOM * max(map(len, sequences))
    # Sorted, a sequence shares the longest beginning with one of its neighbours: comparing each
    # with the one before finds the whole tree.
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    rows, before = [_Row()], []
    where: list[tuple[int, list[int]]] = [(0, [])] * len(sequences)
    for index in order:
        sequence, row = sequences[index], rows[-1]
        shared = common_prefix(before, sequence)
        if row.ids and len(row.ids) + len(sequence) - shared > capacity:
            row.close()
            row, shared = _Row(), 0
            rows.append(row)
        where[index] = (len(rows) - 1, row.add(sequence, shared))
        before = sequence
    rows[-1].close()
    width = max(len(row.ids) for row in rows)
    return PrefixTrees(
        pad([row.ids for row in rows], pad_token_id).numpy(),
        pad([row.depths for row in rows], 0).numpy(),
        pad([row.ends for row in rows], 0).numpy(),
        [row * width + np.array(places, dtype=np.int64) for row, places in where],
    )


def seen_in_tree(subtree_ends: Tensor) -> Tensor:
    """Which tokens each token sees, (R, L, L): its ancestors and itself."""
    place = torch.arange(subtree_ends.shape[1], device=subtree_ends.device)
    return (place[:, None] >= place) & (place[:, None] < subtree_ends[:, None, :])
