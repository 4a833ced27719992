"""The settings of offline learning of token values: Monte-Carlo returns, and ILQL."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lactchain.config.bounds import AtLeast1, Bound, Bounded, NonNegative, PositiveShare


@dataclass(frozen=True)
class ValueConfig(Bounded):
    """Offline learning of token values; the fields that MC and ILQL share."""

    gamma: PositiveShare = 0.99
    """Discount of one token of the agent, in (0, 1]."""
    cql_weight: NonNegative = 0.01
    """Weight of the conservative term logsumexp Q(s, .) - Q(s, token), the cross-entropy of Q's
    softmax, beside half the squared errors of Q and V (LMRL-Gym: 0.5 in the maze, 0.01 in
    Wordle)."""
    tokens: Literal["all", "first"] = "all"
    """Of which tokens of a completion values are learnt. first: of the first one alone, for less
    time, where it is the decision and what is behind it punctuation; gamma then counts once for
    each completion, and values act with `actor.ranking.by: first`."""
    head_size: AtLeast1 | None = None
    """Width of the heads' hidden layer; null: twice that of the trunk."""
    group_by: Literal["prompt", "episode"] = "prompt"
    """What a row of a batch is. prompt: a state with all completions to it, equal decisions
    merged and weighted by their number; episode: the decisions of one episode, for texts that grow
    and never recur. Either way what texts share is read once."""


@dataclass(frozen=True)
class ILQLConfig(ValueConfig):
    """Implicit language Q-learning (Snell et al. 2022)."""

    expectile: Annotated[float, Bound(above=0, below=1)] = 0.7
    """Expectile of V among the actions of the data, in (0, 1): the paper's tau. 0.99 in LMRL-Gym's
    maze, 0.7 in Wordle; towards 1, V is the best action's value."""
    tau: PositiveShare = 0.005
    """Share of the trained parameters that the target network takes at each update (Polyak)."""
    bootstrap: Literal["token", "completion"] = "token"
    """Whose value the target of a token is. token: of the next one, as in the paper, which may
    piece a completion together; completion: of the text behind the completion, discounted for the
    tokens up to it (multi-step returns), for completions of which the first token is the
    decision."""
