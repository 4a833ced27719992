"""All legal completions as the leaves of a tree, and a walk that weighs each of them.

The walk reads each beginning once: what it costs is the number of nodes, and not the number of
completions times their length. It goes down before it goes on sideways, so that only few beginnings
wait with their keys and values in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lactchain.models.generation.automaton import ACCEPT, ChainAutomaton
from lactchain.models.generation.cascade import CACHE_BYTES, CascadeTrunk, RowCache, trimmed

Score = Callable[[Tensor, np.ndarray], Tensor]
"""From hidden states (N, D) and nodes (N,) to numbers (N, M) of the tokens."""

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From what a beginning weighs (K,) and the number of its next token (K,) to what both weigh."""


@dataclass(frozen=True)
class CompletionTree:
    """All legal completions; a node is what was said before a choice, and the root is node 0.

    A number in `targets` tells three things apart: a node is positive (nothing leads to the root),
    completion c is written ~c, which is negative, and 0 is a token that may not follow.
    """

    completions: list[tuple[int, ...]]
    """The token ids of each completion (C)."""
    opening: tuple[int, ...]
    """The tokens that every completion begins with."""
    targets: np.ndarray
    """(N, M) where each of M tokens leads."""
    blocks: np.ndarray
    """(N, W) the tokens behind the node before: one that was chosen, and what follows it without a
    choice; padded with -1 on the left."""


def chain_tree(automaton: ChainAutomaton) -> tuple[CompletionTree, np.ndarray]:
    """The tree of all completions that an automaton accepts, and its state in each node (N,)."""
    texts, states = [automaton.opening], [automaton.start]
    blocks = [np.full(automaton.blocks.shape[-1], -1)]
    completions: list[tuple[int, ...]] = []
    targets: list[np.ndarray] = []
    for text, state in zip(texts, states, strict=True):  # both grow as they are read
        row = np.zeros(len(automaton.tokens), dtype=np.int64)
        for column in np.flatnonzero(automaton.legal[state]):
            block, after = automaton.blocks[state, column], automaton.after[state, column]
            longer = (*text, *block[block >= 0].tolist())
            if after == ACCEPT:
                row[column] = ~len(completions)
                completions.append(longer)
            else:
                row[column] = len(texts)
                texts.append(longer)
                states.append(after)
                blocks.append(block)
        targets.append(row)
    tree = CompletionTree(completions, automaton.opening, np.array(targets), np.array(blocks))
    return tree, np.array(states)


def token_tree(completions: Sequence[Sequence[int]], tokens: Sequence[int]) -> CompletionTree:
    """The tree of completions, a token of M at a time; `ValueError` if one begins another."""
    completions = [tuple(completion) for completion in completions]
    beginnings = (ids[:length] for ids in completions for length in range(len(ids)))
    nodes = {text: node for node, text in enumerate(dict.fromkeys(beginnings))}
    column = {token: number for number, token in enumerate(tokens)}
    targets = np.zeros((len(nodes), len(tokens)), dtype=np.int64)
    for number, completion in enumerate(completions):
        for place, token in enumerate(completion):
            behind = nodes.get(completion[: place + 1], ~number)
            targets[nodes[completion[:place]], column[token]] = behind
    if any(completion in nodes for completion in completions):
        raise ValueError("completions: expected none that begins another, got one")
    blocks = np.array([text[-1:] or (-1,) for text in nodes])
    return CompletionTree(completions, (), targets, blocks)


@dataclass(frozen=True)
class Texts:
    """N beginnings of completions, of which all but the last block has been read.

    Each goes on from a row of the cache, its parent (N,), and answers a prompt, its owner (N,).
    `reached` (N,) is its weight.
    """

    parents: np.ndarray
    owners: np.ndarray
    nodes: np.ndarray
    reached: np.ndarray

    def some(self, rows: np.ndarray | slice) -> Self:
        """The rows of a mask or slice."""
        return Texts(*(column[rows] for column in vars(self).values()))


def rows_at_once(
    tree: CompletionTree, trunk: CascadeTrunk, prompts: Sequence[Sequence[int]]
) -> int:
    """How many rows a walk reads at a time, to hold `CACHE_BYTES` of keys and values at most.

    Besides them, those are held that they were branched from, and one lot for each level at which
    texts fork. One row is always read.
    """
    depths = np.zeros(len(tree.targets), dtype=np.int64)
    for node, targets in enumerate(tree.targets):
        depths[targets[targets > 0]] = depths[node] + 1
    forks = np.unique(depths[(tree.targets > 0).sum(axis=1) > 1])
    widest = np.zeros(depths.max() + 1, dtype=np.int64)  # block of each level
    np.maximum.at(widest, depths, (tree.blocks >= 0).sum(axis=1))
    own = max(map(len, prompts)) - len(trunk.prefix_ids)
    row = (own + len(tree.opening) + int(widest.sum())) * trunk.bytes_per_column
    return max(1, CACHE_BYTES[trunk.model.device.type] // (row * (len(forks) + 2)))


@torch.inference_mode()
def weigh_completions(
    tree: CompletionTree,
    trunk: CascadeTrunk,
    prompts: Sequence[Sequence[int]],
    score: Score,
    combine: Combine,
    start: np.floating,
) -> np.ndarray:
    """What each of C completions weighs behind each of B prompts, (B, C).

    Args:
        score: the numbers of the tokens that may come next, such as their probabilities.
        combine: what a longer beginning weighs, such as the product of both.
        start: what an empty completion weighs; sums are of its type.
    """
    found = np.zeros((len(prompts), len(tree.completions)), dtype=start.dtype)
    size = rows_at_once(tree, trunk, prompts) if prompts else 1
    with trunk.in_use():
        for first in range(0, len(prompts), size):
            owners = np.arange(first, min(first + size, len(prompts)))
            cache, lengths, hidden = trunk.read([prompts[i] for i in owners], opening=tree.opening)
            reached = np.full(len(owners), start)
            texts = Texts(owners - first, owners, np.zeros_like(owners), reached)
            # Waiting texts keep the caches of their parents in memory, so the newest goes on first.
            waiting: list[tuple[Texts, RowCache, Tensor]] = []
            while True:
                texts = _longer(texts, tree, score(hidden, texts.nodes), combine, found)
                parts = (texts.some(slice(i, i + size)) for i in range(0, len(texts.nodes), size))
                waiting += [(part, cache, lengths) for part in parts]
                if not waiting:
                    break
                texts, cache, lengths = waiting.pop()
                blocks, parents = (
                    torch.from_numpy(array).to(lengths.device)
                    for array in (trimmed(tree.blocks[texts.nodes]), texts.parents)
                )
                cache = cache.branch(parents, blocks.shape[1])
                hidden, lengths = trunk.feed(blocks, lengths[parents], cache)
    return found


def _longer(
    texts: Texts, tree: CompletionTree, scores: Tensor, combine: Combine, found: np.ndarray
) -> Texts:
    """The texts that go on behind the given ones; those that end are entered in `found`."""
    parents, columns = np.nonzero(tree.targets[texts.nodes])
    longer = Texts(
        parents=parents,
        owners=texts.owners[parents],
        nodes=tree.targets[texts.nodes[parents], columns],
        reached=combine(texts.reached[parents], scores.cpu().numpy()[parents, columns]),
    )
    ended = longer.some(longer.nodes < 0)
    found[ended.owners, ~ended.nodes] = ended.reached
    return longer.some(longer.nodes > 0)
