"""The automaton of legal completions: which tokens may follow, for chains of actions.

Constrained decoding walks it. A state is "n actions so far, and these tokens of the next
piece", so its size grows with the number of actions times the length of a chain and not with the
number of chains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from transformers import PreTrainedTokenizerBase

from lactchain.errors import ConfigError, DataError
from lactchain.types import ChainGrammar

ACCEPT = -1


@dataclass(frozen=True)
class ChainAutomaton:
    """Tables over S states and M tokens.

    With a token that was drawn come all that follow it without a choice: together they are a block
    of W, fed to the model in one step.
    """

    tokens: np.ndarray
    """(M,) ids of all tokens that occur in legal completions."""
    legal: np.ndarray
    """(S, M) whether the token may follow."""
    blocks: np.ndarray
    """(S, M, W) ids of the block, padded with -1 on the left."""
    after: np.ndarray
    """(S, M) the state behind the block; ACCEPT at the end of the completion."""
    opening: tuple[int, ...]
    """The tokens that every completion begins with."""
    start: int
    """The state behind them."""
    longest: int
    """Tokens of the longest legal completion."""


def build_automaton(grammar: ChainGrammar, tokenizer: PreTrainedTokenizerBase) -> ChainAutomaton:
    """The automaton of all chains of 1 to `max_chain_length` actions, end of sequence included.

    Raises:
        ConfigError: the actions have no names, so any text is a completion.
        DataError: tokens straddle the borders between actions, or those of one begin another's.
    """
    if not grammar.action_names:
        raise ConfigError("actor.decoding: expected free, since any text is a completion here")
    pieces = _pieces(grammar, tokenizer)
    # A state's legal tokens, and the state behind each. The chains of the same number of actions
    # meet in one state, `before`, whatever the actions were: so the automaton stays small.
    edges: list[dict[int, int]] = [{}]
    # Tokens of the longest way to `before`, and of the longest completion.
    before = to_before = longest = 0
    for count in range(1, grammar.max_chain_length + 1):
        edges.append({})
        after, to_after = len(edges) - 1, to_before
        for (later, final, _), piece in pieces.items():
            if later != (count > 1):
                continue
            if final:
                _add_path(edges, before, (*piece, tokenizer.eos_token_id), ACCEPT)
                longest = max(longest, to_before + len(piece) + 1)
            elif count < grammar.max_chain_length:
                _add_path(edges, before, piece, after)
                to_after = max(to_after, to_before + len(piece))
        before, to_before = after, to_after
    return _tabulate(edges, longest)


def _add_path(edges: list[dict[int, int]], state: int, piece: Sequence[int], target: int) -> None:
    """Adds the path of a piece from a state; its last token leads to `target`."""
    *inner, last = piece
    for token in inner:
        if token not in edges[state]:
            edges.append({})
            edges[state][token] = len(edges) - 1
        state = edges[state][token]
    edges[state][last] = target


Pieces = dict[tuple[bool, bool, int], tuple[int, ...]]
"""Tokens of an action that is (later than first, the final one, this number)."""


def _pieces(grammar: ChainGrammar, tokenizer: PreTrainedTokenizerBase) -> Pieces:
    """How the tokenizer cuts a completion into actions; those of final ones hold the closing.

    Tokenizers merge letters across the borders of our words (`",` is one token of Mistral's), so
    there is a choice of how much of the separator belongs to the action before it; the first that
    falls between tokens is taken. Pieces are cut out of whole completions: a name alone may have
    other tokens than in context.
    """
    cuts = [_cut_all(grammar, tokenizer, tail) for tail in range(len(grammar.separator) + 1)]
    possible = [pieces for pieces in cuts if pieces is not None]
    for pieces in possible:
        begins = (  # a piece of one action one of another in the same place, or equals it
            one == other[: len(one)]
            for (place, one), (other_place, other) in permutations(pieces.items(), 2)
            if place[0] == other_place[0] and place[2] != other_place[2]
        )
        if not any(begins):
            # What goes on comes first: the path of a final action may lead along it.
            return dict(sorted(pieces.items(), key=lambda item: item[0][1]))
    if possible:
        raise DataError(
            f"action names: the tokens of one begin another's, of {grammar.action_names} by the "
            f"tokenizer {tokenizer.name_or_path}, so constrained decoding cannot tell them apart; "
            "rename an action or use --actor.decoding free"
        )
    raise DataError(
        f"tokenizer {tokenizer.name_or_path}: tokens of {grammar.render([0, 0])!r} straddle the "
        "borders between actions, so constrained decoding has no automaton; use free decoding "
        "(--actor.decoding free) or another --environment.extractor"
    )


def _cut_all(grammar: ChainGrammar, tokenizer: PreTrainedTokenizerBase, tail: int) -> Pieces | None:
    """The pieces of chains of up to three actions; None where they differ from chain to chain."""
    actions, longest = range(len(grammar.action_names)), min(3, grammar.max_chain_length)
    chains = {(a, b, a)[: n + 1] for a in actions for b in actions for n in range(longest)}
    pieces: Pieces = {}
    for chain in sorted(chains):
        cut = _cut(grammar, tokenizer, chain, tail)
        if cut is None:
            return None
        for place, piece in enumerate(cut):
            key = (place > 0, place == len(chain) - 1, chain[place])
            if pieces.setdefault(key, piece) != piece:
                return None
    return pieces


def _cut(
    grammar: ChainGrammar, tokenizer: PreTrainedTokenizerBase, chain: Sequence[int], tail: int
) -> list[tuple[int, ...]] | None:
    """The tokens, cut `tail` characters behind each action but the last; None: one straddles."""
    text = grammar.render(chain)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    cuts, position = [], len(grammar.opening)
    for action in chain[:-1]:
        position += len(grammar.action_names[action])
        cuts.append(position + tail)
        position += len(grammar.separator)
    pieces, tokens = [], list(zip(encoding["input_ids"], encoding["offset_mapping"], strict=True))
    for cut in (*cuts, len(text)):
        piece = [token for token, (_, stop) in tokens if stop <= cut]
        tokens = tokens[len(piece) :]
        if not piece or (tokens and tokens[0][1][0] < cut):
            return None
        pieces.append(tuple(piece))
    return pieces


def _tabulate(edges: list[dict[int, int]], longest: int) -> ChainAutomaton:
    tokens = sorted({token for out in edges for token in out})
    steps = {}
    for state, out in enumerate(edges):
        for token, target in out.items():
            run, end = _forced(edges, target)
            steps[state, tokens.index(token)] = (token, *run), end
    width = max(len(block) for block, _ in steps.values())
    shape = (len(edges), len(tokens))
    legal, after = np.zeros(shape, dtype=bool), np.full(shape, ACCEPT)
    blocks = np.full((*shape, width), -1)
    for place, (block, end) in steps.items():
        legal[place], after[place] = True, end
        blocks[place][width - len(block) :] = block
    opening, start = _forced(edges, 0)
    return ChainAutomaton(np.array(tokens), legal, blocks, after, opening, start, longest)


def _forced(edges: list[dict[int, int]], state: int) -> tuple[tuple[int, ...], int]:
    """The tokens that follow a state without a choice, and the state behind them."""
    run: list[int] = []
    while state != ACCEPT and len(edges[state]) == 1:
        ((token, state),) = edges[state].items()
        run.append(token)
    return tuple(run), state
