"""What the values of tokens regress on: y = reward + discount · V(end of `prompt_t`).

That is the target of the last token of a completion; tokens before it follow from it. A view has
these numbers in its columns.
"""

from dataclasses import replace

import numpy as np

from lactchain_extras.token_values.token_view import TokenView


def one_step_targets(view: TokenView, gamma: float) -> TokenView:
    """Targets r + γ (1 − terminated) V(next prompt), those of ILQL (Snell et al. 2022)."""
    return _targets(view, view.prompt_t, view.rewards, gamma * view.discounts)


def monte_carlo_targets(view: TokenView, gamma: float) -> TokenView:
    """Targets r + γ R, R the return from the next decision's first token on.

    An episode that was cut ends with the value of its last prompt: a time limit is no ending.
    Computed backwards, y_i = r_i + γ^{n_{i+1}} y_{i+1}, since dividing by powers of γ underflows.
    """
    rewards, discounts = view.rewards.astype(float), gamma * view.discounts
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
    sums = np.cumsum(powers)[num_tokens - 1] * targets.rewards
    return float(sums.sum() / num_tokens.sum())


def _targets(
    view: TokenView, after: np.ndarray, rewards: np.ndarray, discounts: np.ndarray
) -> TokenView:
    after = np.where(discounts > 0, after, view.prompt_tm1)  # no more is read than is asked for
    return replace(view, prompt_t=after, rewards=rewards, discounts=discounts)
