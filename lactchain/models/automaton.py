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
ILLEGAL = -2


@dataclass(frozen=True)
class ChainAutomaton:
    """A table over (state, token); the start is state 0.

    Attributes:
        tokens: (M,) ids of all tokens that occur in legal answers.
        next_state: (S, M) the state after a token; ACCEPT at the end of the answer, ILLEGAL where
            the token may not follow.
        forced: (S,) for each state the tokens (columns of `tokens`) that follow without a choice,
            and the state they lead to.
        longest: tokens of the longest legal answer.
    """

    tokens: np.ndarray
    next_state: np.ndarray
    forced: tuple[tuple[tuple[int, ...], int], ...]
    longest: int

    @property
    def legal(self) -> np.ndarray:
        """(S, M) True where the token may follow."""
        return self.next_state != ILLEGAL


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
    tokens = np.array(sorted({token for out in edges for token in out}))
    column = {int(token): i for i, token in enumerate(tokens)}
    next_state = np.full((len(edges), len(tokens)), ILLEGAL, dtype=np.int64)
    for state, out in enumerate(edges):
        for token, target in out.items():
            next_state[state, column[token]] = target
    forced = tuple(_forced(next_state, state) for state in range(len(edges)))
    return ChainAutomaton(tokens, next_state, forced, longest)


def _forced(next_state: np.ndarray, state: int) -> tuple[tuple[int, ...], int]:
    run: list[int] = []
    while state != ACCEPT:
        (legal,) = np.nonzero(next_state[state] != ILLEGAL)
        if len(legal) != 1:
            break
        run.append(int(legal[0]))
        state = int(next_state[state, legal[0]])
    return tuple(run), state
