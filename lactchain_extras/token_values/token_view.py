"""The token view of episodes: what the agent said, token for token, and what came of it.

One row is one decision: the prompt that the policy saw, the tokens of its completion (end of
sequence included), the reward, which sits on the last of them, and the prompt that followed,
encoded alone, as the policy will see it. Every token of a completion is a step of the token MDP
(Snell et al. 2022): the state after it is the token itself inside a completion, and the end of the
next prompt behind its last one. γ applies once per token of the agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from lactchain.errors import DataError
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.types import Action, Trajectory


@dataclass(frozen=True)
class TokenView:
    """N decisions of any number of episodes, one after another.

    Attributes:
        prompts: token ids of the U different prompts.
        completions: token ids of the A different completions.
        prompt_tm1: (N,) which prompt was answered.
        completion_tm1: (N,) which completion was given.
        prompt_t: (N,) which prompt followed.
        rewards: (N,) reward of the decision, undiscounted.
        discounts: (N,) what multiplies the value of the prompt that followed: 0 behind an ending,
            else 1, until targets are made.
        last: (N,) the episode ended behind this decision, or was cut there.
        episodes: (N,) index of the trajectory, the first one's where several became one.
        weights: (N,) how many decisions this one stands for.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    prompt_tm1: np.ndarray
    completion_tm1: np.ndarray
    prompt_t: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    last: np.ndarray
    episodes: np.ndarray
    weights: np.ndarray

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def num_tokens(self) -> np.ndarray:
        """Tokens of each completion, (N,)."""
        return np.array([len(completion) for completion in self.completions])[self.completion_tm1]

    def first_tokens(self) -> TokenView:
        """The same decisions, each cut to the first token of its completion."""
        return replace(self, completions=[completion[:1] for completion in self.completions])

    def merged(self) -> TokenView:
        """Decisions that differ in their numbers alone become one, with the means of these.

        Reward and discount enter a target, a mean of squares and of linear terms, linearly: the
        same gradient in less time, and a loss without the spread of the returns.
        """
        keys = np.column_stack([self.prompt_tm1, self.completion_tm1, self.prompt_t])
        _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        group, weights = group.ravel(), np.bincount(group.ravel(), self.weights)
        means = {
            name: np.bincount(group, self.weights * getattr(self, name)) / weights
            for name in ("rewards", "discounts")
        }
        columns = {n: c[first] for n, c in vars(self).items() if isinstance(c, np.ndarray)}
        return replace(self, **columns | means | {"weights": weights})

    def groups(self, by: str) -> list[np.ndarray]:
        """The decisions that are read together: those to one "prompt", or of one "episode"."""
        column = {"prompt": self.prompt_tm1, "episode": self.episodes}[by]
        order = np.argsort(column, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(column[order])) + 1)


def token_view(
    trajectories: Sequence[Trajectory],
    template: PromptTemplate,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
) -> TokenView:
    """The decisions of episodes as the language model reads and writes them.

    Where an episode was cut and its last text does not show the state (`Failure` in the maze), the
    last decision is left out, and the text before it is where the episode was cut.

    Args:
        template: makes prompts of observations, as the policy's does.
        max_length: longest prompt and completion together, in tokens: the model's context.

    Raises:
        DataError: there is no decision, sampled tokens do not read as the text beside them, or a
            decision is longer than the context; naming episode and decision.
    """
    lengths = [len(episode) - episode.cut_out_of_sight for episode in trajectories]
    decisions = [(e, t) for e, length in enumerate(lengths) for t in range(length)]
    if not decisions:
        raise DataError(f"trajectories: expected decisions, got none in {len(trajectories)}")
    texts: dict[str, int] = {}
    observed = [[texts.setdefault(o, len(texts)) for o in t.observations] for t in trajectories]
    actions: dict[Action, int] = {}
    answers = [actions.setdefault(trajectories[e].actions[t], len(actions)) for e, t in decisions]
    decided = ((trajectories[e].observations[t], trajectories[e].actions[t]) for e, t in decisions)
    template.check_untemplated(decided, "trajectories: decisions")
    prompts = template.encode_batch(list(texts))

    def name(number: int) -> str:
        episode, t = decisions[answers.index(number)]
        return f"trajectories: episode {episode}, decision {t}"

    encoded = encode_completions(list(actions), tokenizer, name)
    view = TokenView(
        prompts=prompts,
        completions=[ids or [tokenizer.eos_token_id] for ids in encoded],
        prompt_tm1=np.array([observed[e][t] for e, t in decisions]),
        completion_tm1=np.array(answers),
        prompt_t=np.array([observed[e][t + 1] for e, t in decisions]),
        rewards=np.array([trajectories[e].rewards[t] for e, t in decisions]),
        discounts=np.array(
            [float(not (trajectories[e].terminated and t + 1 == lengths[e])) for e, t in decisions]
        ),
        last=np.array([t + 1 == lengths[e] for e, t in decisions]),
        episodes=np.array([e for e, _ in decisions]),
        weights=np.ones(len(decisions)),
    )
    _check_lengths(view, decisions, max_length)
    return view


def _check_lengths(
    view: TokenView, decisions: Sequence[tuple[int, int]], max_length: int | None
) -> None:
    lengths = np.array([len(prompt) for prompt in view.prompts])
    longest = np.maximum(lengths[view.prompt_tm1] + view.num_tokens, lengths[view.prompt_t])
    if max_length is not None and longest.max() > max_length:
        episode, t = decisions[longest.argmax()]
        where = f"trajectories: episode {episode}, decision {t}"
        takes = f"prompt and completion take {longest.max()} tokens, the model reads {max_length}"
        raise DataError(f"{where}: {takes}; shorten environment.history or actor.strategy")


# --- what values regress on -----------------------------------------------------------------------
# y = reward + discount · V(end of `prompt_t`), in the columns of a view, is the target of the last
# token of a completion; tokens before it follow from it.


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
