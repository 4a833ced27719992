"""The tree of all legal answers, and the beginnings of answers on the way through it.

Chains of up to nine actions have thousands of answers, but they share their beginnings. A walk
through the tree reads each beginning once: what it costs is the number of nodes, and not the number
of answers times their length. `Decoder.enumerate` makes that walk.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from lactchain.models.generation.automaton import ACCEPT, ChainAutomaton


@dataclass(frozen=True)
class AnswerTree:
    """All legal answers; a node is what was said before a choice, and the root is node 0.

    Attributes:
        answers: the token ids of each answer (C).
        states: (N,) the automaton's state in each node.
        targets: (N, M) the node behind a token, or ~c where it ends answer c.
        num_forks: levels at which a text goes on in more than one way.
        width: tokens behind the opening, if each level is fed in blocks of one width.
    """

    answers: list[tuple[int, ...]]
    states: np.ndarray
    targets: np.ndarray
    num_forks: int
    width: int


def answer_tree(automaton: ChainAutomaton) -> AnswerTree:
    """The tree of all answers, level by level; it has as many leaves as there are chains."""
    nodes = [(automaton.opening, automaton.start, 0)]
    answers: list[tuple[int, ...]] = []
    rows: list[np.ndarray] = []
    widths: dict[int, int] = {}
    forks: set[int] = set()
    for text, state, depth in nodes:  # it grows as it is read
        targets, first_child = np.zeros(len(automaton.tokens), dtype=np.int64), len(nodes)
        for column in np.flatnonzero(automaton.legal[state]):
            block, after = automaton.blocks[state, column], automaton.after[state, column]
            said = tuple(block[block >= 0].tolist())
            if after == ACCEPT:
                # Answer c is written ~c, which is negative: so one number tells leaf from node.
                targets[column] = ~len(answers)
                answers.append((*text, *said))
            else:
                targets[column] = len(nodes)
                nodes.append(((*text, *said), after, depth + 1))
                widths[depth] = max(widths.get(depth, 0), len(said))
        rows.append(targets)
        if len(nodes) > first_child + 1:
            forks.add(depth)
    states = np.array([state for _, state, _ in nodes])
    return AnswerTree(answers, states, np.array(rows), len(forks), sum(widths.values()))


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
