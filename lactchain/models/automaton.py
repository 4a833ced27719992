"""The automaton of legal answers: which tokens may follow, for chains of actions.

Constrained decoding walks it. A state is "n actions said so far, and these tokens of the next
piece", so its size grows with the number of actions times the length of a chain and not with the
number of chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from lactchain.errors import DataError
from lactchain.types import ChainGrammar

ACCEPT = -1


@dataclass(frozen=True)
class ChainAutomaton:
    """Tables over (state, token); the start is state 0.

    What may be drawn in a state is a column of `tokens`. With the drawn token come all tokens that
    follow it without a choice: together they are a block, fed to the model in one step.

    Attributes:
        tokens: (M,) ids of all tokens that occur in legal answers.
        legal: (S, M) whether the token may follow.
        blocks: (S, M, W) ids of the block, padded with -1 on the left.
        after: (S, M) the state behind the block; ACCEPT at the end of the answer.
        opening: the tokens that every answer begins with.
        start: the state behind them.
        longest: tokens of the longest legal answer.
    """

    tokens: np.ndarray
    legal: np.ndarray
    blocks: np.ndarray
    after: np.ndarray
    opening: tuple[int, ...]
    start: int
    longest: int


def build_automaton(grammar: ChainGrammar, tokenizer: PreTrainedTokenizerBase) -> ChainAutomaton:
    """The automaton of all chains of 1 to `max_chain_length` actions, end of sequence included.

    Raises:
        DataError: the tokenizer's tokens straddle the borders between actions, or one action's
            tokens begin another's.
    """
    first, later, end = _pieces(grammar, tokenizer)
    edges: list[dict[int, int]] = [{}]
    said = 0
    for count in range(grammar.max_chain_length):
        edges.append({})
        after = len(edges) - 1
        for piece in first if count == 0 else later:
            _add_path(edges, said, piece, after)
        _add_path(edges, after, (*end, tokenizer.eos_token_id), ACCEPT)
        said = after
    longest = max(map(len, first)) + (grammar.max_chain_length - 1) * max(map(len, later))
    return _tabulate(edges, longest + len(end) + 1)


def _add_path(edges: list[dict[int, int]], state: int, piece: Sequence[int], target: int) -> None:
    """Adds the path of a piece from a state; its last token leads to `target`."""
    *inner, last = piece
    for token in inner:
        if token not in edges[state]:
            edges.append({})
            edges[state][token] = len(edges) - 1
        state = edges[state][token]
    if edges[state].setdefault(last, target) != target:
        raise DataError(
            f"action names: the tokens {tuple(piece)} of one name begin another's, so constrained "
            "decoding cannot tell them apart; rename an action or use --actor.decoding free"
        )


Pieces = tuple[list[tuple[int, ...]], list[tuple[int, ...]], tuple[int, ...]]


def _pieces(grammar: ChainGrammar, tokenizer: PreTrainedTokenizerBase) -> Pieces:
    """Tokens of each action said first, of each said later, and of the closing.

    Tokenizers merge letters across the borders of our words (`",` is one token of Mistral's), so
    an action's piece ends before or after its closing quotation mark, whichever is a border of
    tokens. Pieces are cut out of whole answers: a name alone may have other tokens than in context.
    """
    for quote in (0, 1):
        pieces = _cut_all(grammar, tokenizer, quote)
        if pieces is not None:
            return pieces
    raise DataError(
        f"tokenizer {tokenizer.name_or_path}: tokens of {grammar.render([0, 0])!r} straddle the "
        "borders between actions, so constrained decoding has no automaton; use free decoding "
        "(--actor.decoding free) or another answer format"
    )


def _cut_all(
    grammar: ChainGrammar, tokenizer: PreTrainedTokenizerBase, quote: int
) -> Pieces | None:
    count = len(grammar.action_names)
    chains = [(a, b)[: grammar.max_chain_length] for a in range(count) for b in range(count)]
    chains += [(a,) for a in range(count)]
    first, later, ends = {}, {}, set()
    for chain in chains:
        pieces = _cut(grammar, tokenizer, chain, quote)
        if pieces is None or first.setdefault(chain[0], pieces[0]) != pieces[0]:
            return None
        if len(chain) == 2 and later.setdefault(chain[1], pieces[1]) != pieces[1]:
            return None
        ends.add(pieces[-1])
    if len(ends) != 1:
        return None
    return [first[a] for a in range(count)], [later[a] for a in sorted(later)], ends.pop()


def _cut(
    grammar: ChainGrammar, tokenizer: PreTrainedTokenizerBase, chain: Sequence[int], quote: int
) -> list[tuple[int, ...]] | None:
    """The answer's tokens, cut behind each action; None where a token straddles a cut."""
    text = grammar.render(chain)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    cuts, position = [], len(grammar.opening)
    for action in chain:
        position += len(grammar.action_names[action])
        cuts.append(position + quote)
        position += len(grammar.separator)
    cuts.append(len(text))
    pieces, tokens = [], list(zip(encoding["input_ids"], encoding["offset_mapping"], strict=True))
    for cut in cuts:
        piece = [token for token, (_, stop) in tokens if stop <= cut]
        tokens = tokens[len(piece) :]
        if not piece or (tokens and tokens[0][1][0] < cut):
            return None
        pieces.append(tuple(piece))
    return pieces


def _tabulate(edges: list[dict[int, int]], longest: int) -> ChainAutomaton:
    tokens = sorted({token for out in edges for token in out})
    shape = (len(edges), len(tokens))
    legal, after = np.zeros(shape, dtype=bool), np.full(shape, ACCEPT)
    blocks = np.full((*shape, longest), -1)
    for state, out in enumerate(edges):
        for token, target in out.items():
            column = tokens.index(token)
            run, end = _forced(edges, target)
            block = (token, *run)
            legal[state, column], after[state, column] = True, end
            blocks[state, column, longest - len(block) :] = block
    width = int((blocks >= 0).sum(axis=-1).max())
    opening, start = _forced(edges, 0)
    return ChainAutomaton(
        np.array(tokens), legal, blocks[..., longest - width :], after, opening, start, longest
    )


def _forced(edges: list[dict[int, int]], state: int) -> tuple[tuple[int, ...], int]:
    """The tokens that follow a state without a choice, and the state behind them."""
    run: list[int] = []
    while state != ACCEPT and len(edges[state]) == 1:
        ((token, state),) = edges[state].items()
        run.append(token)
    return tuple(run), state
