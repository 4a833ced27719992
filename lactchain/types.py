"""The nouns that every layer shares: actions, trajectories, pairs, and the protocols around them.

Nothing here imports torch, transformers or gymnasium: these are plain values that travel between
processes, into parquet and into notebooks.
"""

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class Action:
    """One completion of a policy: the text it said and, for a language model, how it said it.

    Attributes:
        text: the completion, verbatim, special tokens removed.
        token_ids: the sampled ids, end-of-sequence included; they need not be the canonical
            tokenisation of `text`. Empty for policies that are not language models.
        logprobs: log-probability of each sampled token under the distribution it was drawn from.
        stop_reason: "stop" (the policy ended its completion) or "length" (it was cut).
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    stop_reason: str = "stop"


@dataclass(frozen=True)
class ChainGrammar:
    """A legal completion, letter for letter: opening, names with separators, closing.

    Without names any text is an action: completions can then be neither listed nor constrained.
    Extractors state the grammar that they parse, and constrained decoding samples from it, so the
    two cannot drift apart. With the defaults a chain reads `["move forward", "turn left"]`.
    """

    action_names: tuple[str, ...]
    max_chain_length: int = 9
    opening: str = '["'
    separator: str = '", "'
    closing: str = '"]'

    def __post_init__(self) -> None:
        if len(set(self.action_names)) != len(self.action_names):
            raise ValueError(f"action_names: expected different names, got {self.action_names}")
        if self.max_chain_length < 1:
            raise ValueError(f"max_chain_length: expected at least 1, got {self.max_chain_length}")

    @property
    def num_completions(self) -> int:
        """How many different completions there are."""
        count = len(self.action_names)
        return sum(count**length for length in range(1, self.max_chain_length + 1))

    def completions(self) -> Iterator[str]:
        """All completions, the shortest chains first."""
        for length in range(1, self.max_chain_length + 1):
            for actions in product(range(len(self.action_names)), repeat=length):
                yield self.render(actions)

    def render(self, actions: Sequence[int]) -> str:
        """The text of a chain of action indices, in the very letters the extractor accepts."""
        names = (self.action_names[a] for a in actions)
        return f"{self.opening}{self.separator.join(names)}{self.closing}"


@dataclass(frozen=True)
class Discount:
    """γ, and what one factor of it stands for: an "action", or a whole "chain".

    A chain of k actions is an option (Sutton, Precup & Singh 1999, "Between MDPs and semi-MDPs",
    section 2). It earns Σ_j γ^j r_j, and the state after it counts γ^k; per chain that is Σ_j r_j
    and γ.
    """

    gamma: float
    per: str = "action"

    def __post_init__(self) -> None:
        if self.per not in ("action", "chain"):
            raise ValueError(f"discount_per: expected action or chain, got {self.per!r}")

    @property
    def inside(self) -> float:
        """Factor from an action of a chain to the next one."""
        return self.gamma if self.per == "action" else 1.0

    def after(self, num_actions: int | np.ndarray) -> float | np.ndarray:
        """Factors of the values of states after chains of so many actions each."""
        if self.per == "action":
            return self.gamma**num_actions
        return np.full(np.shape(num_actions), self.gamma)


@dataclass(frozen=True)
class Trajectory:
    """One episode of T decisions.

    Attributes:
        env_id: the Gymnasium id.
        seed: the seed of `reset`; together with the policy it replays the episode.
        observations: T + 1 texts; the last is what the episode ended on.
        actions: T completions.
        rewards: T numbers, the undiscounted reward of each whole chain.
        infos: T + 1 mappings that JSON can hold; the first is from `reset`. `infos[t + 1]` holds,
            per executed primitive action of chain t, `rewards`, `executed`, `bumped`, `positions`.
        terminated: the last state is terminal, its value is 0.
        truncated: the episode was cut, its last state has a value.
        policy: the name of who acted.
    """

    env_id: str
    seed: int
    observations: tuple[str, ...]
    actions: tuple[Action, ...]
    rewards: tuple[float, ...]
    infos: tuple[Mapping[str, Any], ...]
    terminated: bool
    truncated: bool
    policy: str = ""

    def __post_init__(self) -> None:
        steps = len(self.actions)
        expected = {"observations": steps + 1, "rewards": steps, "infos": steps + 1}
        for name, length in expected.items():
            if (got := len(getattr(self, name))) != length:
                raise ValueError(
                    f"{name}: expected {length} entries for {steps} actions, got {got}"
                )
        if not np.isfinite(self.rewards).all():
            raise ValueError(f"rewards: expected finite numbers, got {self.rewards}")

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def cut_out_of_sight(self) -> bool:
        """Whether the episode was cut and its last text says so (`Failure`) instead of the state.

        Such a text has no value to bootstrap from.
        """
        return self.truncated and not self.infos[-1].get("shows_state", True)

    def decisions(self) -> "Trajectory":
        """The episode without what nobody heard (`info["unheard"]`).

        Such a completion is no chain, and neither the world nor a penalty has a rule for it. It
        changed nothing and took no time, so it is no decision, and the return before it passes
        through it: otherwise the discount would make silence worth something wherever a step costs.
        """
        kept = [t for t, info in enumerate(self.infos[1:]) if not info.get("unheard")]
        return replace(
            self,
            observations=(*(self.observations[t] for t in kept), self.observations[-1]),
            actions=tuple(self.actions[t] for t in kept),
            rewards=tuple(self.rewards[t] for t in kept),
            infos=(self.infos[0], *(self.infos[t + 1] for t in kept)),
        )

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of rewards."""
        return float(sum(self.rewards))

    @property
    def num_actions(self) -> tuple[int, ...]:
        """Primitive actions that each chain took; an unparsable completion counts as one."""
        return tuple(max(1, len(info["executed"])) for info in self.infos[1:])

    def chain_rewards(self, gamma: float, discount_per: str = "action") -> np.ndarray:
        """Reward r_t of each chain (T,), an option: Σ_j γ^j r_{t,j}, or Σ_j r_{t,j} (`Discount`).

        What the chain as a whole earned beside its actions (a penalty for an unparsable completion,
        a cost per call) is not discounted: it falls due when the completion is given.
        """
        if discount_per == "chain":
            return np.array(self.rewards)
        per_action = [np.asarray(info["rewards"], dtype=float) for info in self.infos[1:]]
        discounted = [rewards @ gamma ** np.arange(len(rewards)) for rewards in per_action]
        beside = [r - rewards.sum() for r, rewards in zip(self.rewards, per_action, strict=True)]
        return np.array(discounted) + np.array(beside)

    def chain_discounts(self, gamma: float, discount_per: str = "action") -> np.ndarray:
        """Discount of the state after each chain of k_t actions (T,): γ^{k_t}, or γ per chain."""
        return Discount(gamma, discount_per).after(np.array(self.num_actions, dtype=float))

    def returns(
        self, gamma: float, discount_per: str = "action", final_value: float = 0.0
    ) -> np.ndarray:
        """Monte-Carlo returns R_t (T,), R_t = r_t + d_t R_{t+1}.

        r_t are the `chain_rewards`, d_t the `chain_discounts`: the semi-Markov form of Sutton &
        Barto 2018, equation 3.9.

        Args:
            final_value: value of the last state, used when the episode was cut: a time limit is
                not an ending. A terminal state is worth 0 whatever is passed.
        """
        rewards = self.chain_rewards(gamma, discount_per)
        discounts = self.chain_discounts(gamma, discount_per)
        running = 0.0 if self.terminated else final_value
        returns = np.empty(len(self))
        for t in reversed(range(len(self))):
            running = rewards[t] + discounts[t] * running
            returns[t] = running
        return returns

    def __str__(self) -> str:
        lines = [f"{self.env_id}, seed {self.seed}, {self.policy or 'unnamed policy'}"]
        for t, (action, reward) in enumerate(zip(self.actions, self.rewards, strict=True)):
            lines += [f"[{t}] {self.observations[t]}", f"    > {action.text}    {reward:+g}"]
        cut = "truncated" if self.truncated else "unfinished"
        ending = "terminated" if self.terminated else cut
        lines.append(f"[{len(self)}] {self.observations[-1]}")
        lines.append(f"{ending}, return {self.episode_return:+g}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{_as_html(str(self))}</pre>"


Conversation = Sequence[Mapping[str, str]]
"""Messages with a `role` and a `content`, as chat templates take them."""


@dataclass(frozen=True)
class PreferencePair:
    """Two completions to one prompt, the better one first, and where they came from.

    `prompt`, `chosen` and `rejected` are TRL's column names. A prompt is the text of a state, which
    an actor is asked as it is asked anything; or, in data of others, a conversation as it is.
    Values are advantages in return units; returns are what the chains earned in the environment.
    `sampled` is the policy's own first completion there, whatever it was worth: how much less it
    says that later on tells how far it has moved. Log-probabilities are those of each token when
    it was sampled; none in data of others.
    """

    prompt: str | Conversation
    chosen: str
    rejected: str
    chosen_token_ids: tuple[int, ...] = ()
    rejected_token_ids: tuple[int, ...] = ()
    chosen_value: float = 0.0
    rejected_value: float = 0.0
    chosen_return: float = 0.0
    rejected_return: float = 0.0
    env_id: str = ""
    seed: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)
    sampled: str = ""
    sampled_token_ids: tuple[int, ...] = ()
    chosen_logprobs: tuple[float, ...] = ()
    rejected_logprobs: tuple[float, ...] = ()
    sampled_logprobs: tuple[float, ...] = ()

    @property
    def margin(self) -> float:
        """How much better the chosen completion is, in return units."""
        return self.chosen_value - self.rejected_value

    def _repr_html_(self) -> str:
        rows = (
            ("prompt", str(self.prompt), ""),
            ("chosen", self.chosen, f"{self.chosen_value:+.3f}"),
            ("rejected", self.rejected, f"{self.rejected_value:+.3f}"),
        )
        cells = "".join(
            f"<tr><th>{name}</th><td><code>{_as_html(text)}</code></td><td>{value}</td></tr>"
            for name, text, value in rows
        )
        return f"<table>{cells}</table>"


def _as_html(text: str) -> str:
    """Escaped; half a surrogate pair, which no file can hold, shows as its number."""
    return html.escape(text.encode(errors="backslashreplace").decode())


@runtime_checkable
class Policy(Protocol):
    """Anything that answers observations: a language model, a script, a person.

    Batch first, always; each row draws from its own seed, so a completion depends neither on its
    neighbours in the batch nor on the number of processes. One with `reads_states = True` is given
    states, as JSON, in the place of texts.
    """

    name: str

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """Answers B observations; row b draws its randomness from `seeds[b]` alone."""
        ...


@runtime_checkable
class StreamingPolicy(Policy, Protocol):
    """A policy that also answers row by row, so that nobody waits for the slowest of a batch."""

    def submit(self, observation: str, seed: int) -> Future[Action]:
        """The answer to an observation, when it is there; the same as `act` would give."""
        ...


def ask(
    policy: Policy, observations: Sequence[str], seeds: Sequence[int], at_once: int
) -> list[Action]:
    """A policy's completions to B observations, so many at a time."""
    slices = (slice(start, start + at_once) for start in range(0, len(observations), at_once))
    return [action for part in slices for action in policy.act(observations[part], seeds[part])]


@dataclass(frozen=True)
class FunctionPolicy:
    """A `Policy` that answers by a function of the text alone, or of the text and a seed.

    Attributes:
        complete: the function; of the text, or, where `draws`, of the text and the row's seed.
        name: what trajectories call it.
        draws: whether the function takes a seed.
    """

    complete: Callable[..., str]
    name: str = "function"
    draws: bool = False

    def act(self, observations: Sequence[str], seeds: Sequence[int]) -> list[Action]:
        """The function's completions to B observations."""
        given = (observations, seeds) if self.draws else (observations,)
        return [Action(self.complete(*row)) for row in zip(*given, strict=True)]


@runtime_checkable
class Critic(Protocol):
    """Anything that values observations, or (observation, completion) pairs, in return units.

    Attributes:
        mode: "value", V(s), or "action_value", Q(s, chain).
        gamma: the discount that the values are under.
        discount_per: what one factor of it stands for, an "action" or a "chain".
    """

    mode: str
    gamma: float
    discount_per: str

    def values(
        self, observations: Sequence[str], actions: Sequence[str] | None = None
    ) -> np.ndarray:
        """V(s) of B observations (B,), or Q(s, chain) when `actions` are given."""
        ...


class Reward(Protocol):
    """Reward of a batch of transitions; every numeric world takes one as `reward`.

    States are rows of observations.
    """

    def reward(self, state: np.ndarray, action: np.ndarray, next_state: np.ndarray) -> np.ndarray:
        """Rewards (B,) of B transitions."""
        ...
