"""From scored completions to preference pairs: best against worst of K completions to one state.

`chain_advantages` scores completions by a critic, `make_pairs` turns scored completions into pairs
and counts what it drops and why, `write_pairs` and `read_pairs` keep them in parquet (schema
version 2: one row per pair, a column per field of `PreferencePair`, `state` as JSON text).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lactchain.data.parquet import JSON, NUMBER, TEXT, Format
from lactchain.errors import NoPairsError
from lactchain.functional.ties import levelled
from lactchain.types import Action, Discount, PreferencePair

_TOKENS, _NUMBERS = pa.list_(pa.int32()), pa.list_(NUMBER)
PAIRS = Format(
    "pairs",
    2,
    dict.fromkeys(["prompt", "chosen", "rejected", "sampled", "env_id"], TEXT)
    | dict.fromkeys(["chosen_token_ids", "rejected_token_ids", "sampled_token_ids"], _TOKENS)
    | dict.fromkeys(["chosen_logprobs", "rejected_logprobs", "sampled_logprobs"], _NUMBERS)
    | dict.fromkeys(["chosen_value", "rejected_value", "chosen_return", "rejected_return"], NUMBER)
    | {"seed": pa.uint64(), "state": JSON},
    PreferencePair,
)
DROP_REASONS = {
    "non_finite": "an advantage or a return of the state's completions is NaN or infinite",
    "equal_text": "the state has no two completions that read differently",
    "equal_tokens": "the two completions are the same tokens",
    "no_chain": "none of the state's completions is a chain",
    "empty": "one of the two completions has neither text nor tokens",
    "tie": "the two completions, both chains, are worth the same",
    "margin": "the margin of the two is less than min_margin",
}
MENDS = {
    "non_finite": "train the critic anew, with a lower learning rate",
    "no_chain": "clone first (warm_start, or train_bc), or set actor.decoding to constrained",
    "margin": "lower min_margin",
}
"""What helps against a reason, where that is not `TRY_OTHERS`."""

TRY_OTHERS = "sample more completions per state, or sample at a higher temperature"


@dataclass(frozen=True)
class Candidates:
    """K completions to one state, each played in the environment and scored.

    Attributes:
        observation: the text that was answered.
        actions: K completions.
        returns: K numbers that the completions earned in the environment, by the chain alone or
            with what followed it, as the caller has it.
        is_chain: whether each completion is a chain; empty where all are.
        advantages: K scores by the critic (`chain_advantages`); empty where there is no critic.
        env_id, seed, state: where it happened; `state` is what JSON can hold.
        own_actions: what the policy itself said, where explorers gave some of the actions; empty
            where they did not.
    """

    observation: str
    actions: tuple[Action, ...]
    returns: tuple[float, ...]
    advantages: tuple[float, ...] = ()
    is_chain: tuple[bool, ...] = ()
    env_id: str = ""
    seed: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)
    own_actions: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.actions)
        for name in ("returns", "advantages", "is_chain"):
            got = len(getattr(self, name))
            if got != count and (got or name == "returns"):
                raise ValueError(f"{name}: expected one for each of {count} actions, got {got}")

    @property
    def own(self) -> tuple[Action, ...]:
        """The K completions of the policy itself."""
        return self.own_actions or self.actions

    @property
    def scores(self) -> tuple[float, ...]:
        """What the completions are ranked by (K,): advantages, or without a critic returns."""
        return self.advantages or self.returns


@dataclass(frozen=True)
class RankedCompletion:
    """A distinct completion to a state, with the means over the times it was given."""

    action: Action
    score: float
    episode_return: float
    is_chain: bool


def chain_advantages(
    rewards: np.ndarray,
    num_actions: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    terminated: np.ndarray,
    gamma: float,
    discount_per: str = "action",
) -> np.ndarray:
    """Advantage of each chain (B,): A = r + (1 − terminated)·γ^k·V(next state) − V(state).

    The founding text writes the advantage once as R − V and once as Q − R. R − V is right: it is
    what the critic's stage trains, and the second would prefer the worse chain. So both stages
    use it, with the one-chain return r + γ^k·V(next state) in the place of R.

    Args:
        rewards: (B,) r of each chain, discounted inside it as `discount_per` says.
        num_actions: (B,) primitive actions k that each chain took; an unparsable completion counts
            as one.
        values, next_values: (B,) V of the states before and after.
        terminated: (B,) whether the state after is terminal, so that its value is 0.
        gamma: discount per primitive action, or per chain (then k is read as 1).
    """
    discounts = Discount(gamma, discount_per).after(np.asarray(num_actions))
    alive = 1.0 - np.asarray(terminated, dtype=float)
    return np.asarray(rewards) + alive * discounts * np.asarray(next_values) - np.asarray(values)


def make_pairs(
    candidates: Sequence[Candidates], *, min_margin: float = 0.0
) -> tuple[list[PreferencePair], dict[str, int]]:
    """The best chain to each state against the worst, or against a completion that is none.

    Completions that read the same count as one, with the mean of their scores: in an environment
    with chance that is the better estimate, in any other it changes nothing.

    Two chains teach choice, where their scores differ by `min_margin`, in return units, and are no
    tie. A chain and what is none teach form, which a policy soon knows. Where there are both, form
    is taught with the probability that a completion to that state is none. Saying nothing never
    pays: it ranks behind every chain, and counts as at most `min_margin` less than the worst one.

    Returns:
        The pairs, and for each of `DROP_REASONS` that occurred how many states it cost. Together
        they are as many as `candidates`.
    """
    pairs: list[PreferencePair] = []
    dropped: Counter[str] = Counter()
    for number, state in enumerate(candidates):
        ranked, reason = rank_completions(state, number, min_margin)
        if reason:
            dropped[reason] += 1
        else:
            pairs.append(_pair(state, ranked[0], ranked[-1]))
    return pairs, dict(dropped)


def rank_completions(
    state: Candidates, number: int, min_margin: float = 0.0
) -> tuple[list[RankedCompletion], str | None]:
    """The distinct completions to learn from, best first, and why they make no pair, or None.

    The state's `number` among all is for the coin that decides whether form is taught.
    """
    if not np.isfinite([*state.scores, *state.returns]).all():
        return [], "non_finite"
    completions = _completions(state)
    least = min((c.score for c in completions if c.is_chain), default=math.inf) - min_margin
    ranked = [c if c.is_chain else replace(c, score=min(c.score, least)) for c in completions]
    # What follows the goal in a chain is never played, so that the score does not tell a chain that
    # ends there from one that goes on; only the shorter one is worth imitating.
    ranked.sort(key=lambda c: (not c.is_chain, -c.score, len(c.action.text)))
    # A coin that lands so as often as a completion to the state is no chain.
    coin = np.random.default_rng([state.seed, number]).random()
    teaches_form = bool(state.is_chain) and coin > np.mean(state.is_chain)
    if has_spread(state, min_margin) and not teaches_form:
        ranked = [completion for completion in ranked if completion.is_chain]
    return ranked, _reason_to_drop(ranked, min_margin)


def has_spread(state: Candidates, min_margin: float = 0.0) -> bool:
    """Whether the chains among the completions differ in score, as two of a pair have to."""
    scores = [completion.score for completion in _completions(state) if completion.is_chain]
    spread = max(scores, default=0.0) - min(scores, default=0.0)
    return spread > 0 and spread >= min_margin


def is_flat(state: Candidates, min_margin: float = 0.0) -> bool:
    """Whether the chains are worth the same; explorers that found no other chain do not tell."""
    completions = _completions(state)
    in_vain = len(completions) > 1 and sum(c.is_chain for c in completions) < 2
    return not (state.own != state.actions and in_vain) and not has_spread(state, min_margin)


def require_pairs(pairs: Sequence[PreferencePair], dropped: Mapping[str, int]) -> None:
    """Raises `NoPairsError`, with the counts, when every pair was dropped."""
    if pairs:
        return
    counts = "; ".join(f"{n} because {DROP_REASONS[reason]}" for reason, n in dropped.items())
    mends = dict.fromkeys(MENDS.get(reason, TRY_OTHERS) for reason in dropped)
    agree = set(dropped) == {"equal_text"}
    raise NoPairsError(
        f"expected preference pairs, but all {sum(dropped.values())} were dropped: {counts}. "
        f"What helps: {'; '.join(mends)}",
        agree,
    )


def write_pairs(
    path: str | Path, pairs: Sequence[PreferencePair], facts: Mapping[str, Any] | None = None
) -> None:
    """Writes pairs to one parquet file, `prompt chosen rejected` as in TRL; see `Format.write`."""
    PAIRS.write(path, pairs, facts)


def read_pairs(path: str | Path) -> list[PreferencePair]:
    """The pairs of a file, or of each `*.parquet` of a folder; see `Format.read`."""
    return PAIRS.read(path)


def _completions(state: Candidates) -> list[RankedCompletion]:
    """The distinct completions, in the order in which they first occur."""
    places: dict[str, list[int]] = {}
    for index, action in enumerate(state.actions):
        places.setdefault(action.text, []).append(index)
    scores, returns = np.array(state.scores), np.array(state.returns)
    means = levelled(np.array([scores[same].mean() for same in places.values()]))
    is_chain = state.is_chain or (True,) * len(state.actions)
    return [
        RankedCompletion(
            state.actions[same[0]], float(mean), float(returns[same].mean()), is_chain[same[0]]
        )
        for same, mean in zip(places.values(), means, strict=True)
    ]


def _reason_to_drop(ranked: Sequence[RankedCompletion], min_margin: float) -> str | None:
    if ranked and not ranked[0].is_chain:
        return "no_chain"
    if len(ranked) < 2:
        return "equal_text"
    chosen, rejected = ranked[0], ranked[-1]
    if not (chosen.action.text and (rejected.action.text or rejected.action.token_ids)):
        return "empty"
    if chosen.action.token_ids and chosen.action.token_ids == rejected.action.token_ids:
        return "equal_tokens"
    if not rejected.is_chain:
        return None
    margin = chosen.score - rejected.score
    if margin == 0.0:
        return "tie"
    return "margin" if margin < min_margin else None


def _pair(
    state: Candidates, chosen: RankedCompletion, rejected: RankedCompletion
) -> PreferencePair:
    sampled = state.own[0]
    return PreferencePair(
        prompt=state.observation,
        chosen=chosen.action.text,
        rejected=rejected.action.text,
        chosen_token_ids=chosen.action.token_ids,
        rejected_token_ids=rejected.action.token_ids,
        sampled=sampled.text,
        sampled_token_ids=sampled.token_ids,
        # An explorer's are not those of the policy.
        chosen_logprobs=chosen.action.logprobs if chosen.action in state.own else (),
        rejected_logprobs=rejected.action.logprobs if rejected.action in state.own else (),
        sampled_logprobs=sampled.logprobs,
        chosen_value=chosen.score,
        rejected_value=rejected.score,
        chosen_return=chosen.episode_return,
        rejected_return=rejected.episode_return,
        env_id=state.env_id,
        seed=state.seed,
        state=state.state,
    )
