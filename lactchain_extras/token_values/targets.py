"""What the values of tokens regress on, from the token view of episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lactchain_extras.token_values.token_view import TokenView


@dataclass(frozen=True)
class ValueTargets:
    """What the values of M decisions regress on: y = reward + discount · V(end of `after`).

    That is the target of the last token of a completion; tokens before it follow from it.

    Attributes:
        prompt, completion, after: (M,) numbers of prompts and completions in the view.
        reward, discount: (M,), the discount 0 where nothing follows.
        weight: (M,) how many decisions of the view this one stands for.
        episode: (M,) index of the trajectory, the first one's where several became one.
    """

    prompt: np.ndarray
    completion: np.ndarray
    after: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    weight: np.ndarray
    episode: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt)

    def merged(self) -> ValueTargets:
        """Decisions that differ in their numbers alone become one, with the means of these.

        Reward and discount enter the target, a mean of squares and of linear terms, linearly: the
        same gradient in less time, and a loss without the spread of the returns.
        """
        keys = np.column_stack([self.prompt, self.completion, self.after])
        _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        group, part = group.ravel(), ValueTargets(*(c[first] for c in vars(self).values()))
        weight = np.bincount(group, self.weight)
        reward = np.bincount(group, self.weight * self.reward) / weight
        discount = np.bincount(group, self.weight * self.discount) / weight
        return replace(part, reward=reward, discount=discount, weight=weight)

    def groups(self, by: str) -> list[np.ndarray]:
        """The decisions that are read together: those to one "prompt", or of one "episode"."""
        column = getattr(self, by)
        order = np.argsort(column, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(column[order])) + 1)


def one_step_targets(view: TokenView, gamma: float) -> ValueTargets:
    """Targets r + γ (1 − terminated) V(next prompt), those of ILQL (Snell et al. 2022)."""
    return _targets(view, view.prompt_t, view.rewards, gamma * ~view.terminated)


def monte_carlo_targets(view: TokenView, gamma: float) -> ValueTargets:
    """Targets r + γ R, R the return from the next decision's first token on.

    An episode that was cut ends with the value of its last prompt: a time limit is no ending.
    Computed backwards, y_i = r_i + γ^{n_{i+1}} y_{i+1}, since dividing by powers of γ underflows.
    """
    rewards, discounts = view.rewards.astype(float), gamma * ~view.terminated
    after, num_tokens = view.prompt_t.copy(), view.num_tokens
    for row in reversed(range(len(view) - 1)):
        if not view.last[row]:
            skipped = gamma ** int(num_tokens[row + 1])
            rewards[row] += skipped * rewards[row + 1]
            discounts[row] = skipped * discounts[row + 1]
            after[row] = after[row + 1]
    return _targets(view, after, rewards, discounts)


def mean_return(view: TokenView, gamma: float) -> float:
    """Mean over the agent's tokens of the return behind each, where the heads start."""
    targets, num_tokens = monte_carlo_targets(view, gamma), view.num_tokens
    powers = gamma ** np.arange(num_tokens.max())
    sums = np.cumsum(powers)[num_tokens - 1] * targets.reward
    return float(sums.sum() / num_tokens.sum())


def _targets(
    view: TokenView, after: np.ndarray, reward: np.ndarray, discount: np.ndarray
) -> ValueTargets:
    return ValueTargets(
        prompt=view.prompt_tm1,
        completion=view.completion_tm1,
        after=np.where(discount > 0, after, view.prompt_tm1),
        reward=reward,
        discount=discount,
        weight=np.ones(len(view)),
        episode=view.episodes,
    )
