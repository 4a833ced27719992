"""Batches of token values: prefix trees, in which what several texts share is read once.

A row of the data set is a group of decisions that are read together (`ValueConfig.group_by`). A
batch holds every text once that its decisions need, and apart from them what only targets need: it
takes no gradient, and no target network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lactchain.config.token_values import ValueConfig
from lactchain.data.token_view import TokenView, ValueTargets
from lactchain.models.generation.prefix_trees import PrefixTrees, prefix_trees

TREES = ("input_ids", "position_ids", "subtree_ends")


class DecisionGroups(Dataset):
    """Groups of decisions: row i is the numbers of those that are read together."""

    def __init__(self, targets: ValueTargets, group_by: str) -> None:
        self.groups = targets.groups(group_by)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"decisions": self.groups[index]}


@dataclass
class TreeCollator:
    """Groups of decisions → prefix trees, and the agent's tokens in them.

    Tensors: `input_ids`, `position_ids`, `subtree_ends` (R, L), see `PrefixTrees`; `state_nodes`
    (U,) and `next_nodes` (W,), places in the flattened rows where Q and V, and V of what follows,
    are wanted; where some decision leads to a prompt that the batch does not answer, the same for
    these as `behind_input_ids`, …, and `behind_nodes` (X,); and for each of T tokens `state` (of
    U), `next` (of W and then X), `action` (the token), `reward`, `discount` and `weight`, whose
    mean over the data is 1.

    Args:
        multi_step: whether every token of a completion leads to what follows the completion, or
            each to the one behind it, and the last one to what follows.
    """

    view: TokenView
    targets: ValueTargets
    gamma: float
    multi_step: bool
    pad_token_id: int

    def __post_init__(self) -> None:
        lengths = np.array([len(completion) for completion in self.view.completions])
        weight, num_tokens = self.targets.weight, lengths[self.targets.completion]
        self._weights = weight / np.average(weight, weights=num_tokens)

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """The batch of these groups."""
        decisions = np.concatenate([row["decisions"] for row in rows])
        trees, states, behind, ends = self._lay_out(decisions)
        batch = self._tokens(decisions, states, ends)
        batch["state_nodes"], batch["state"] = np.unique(batch["state"], return_inverse=True)
        nodes, batch["next"] = np.unique(batch["next"], return_inverse=True)
        size = trees.input_ids.size
        batch["next_nodes"] = nodes[nodes < size]
        batch |= {name: getattr(trees, name) for name in TREES}
        if behind is not None:
            batch |= {f"behind_{name}": getattr(behind, name) for name in TREES}
            batch["behind_nodes"] = nodes[nodes >= size] - size
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        return {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}

    def _lay_out(
        self, decisions: np.ndarray
    ) -> tuple[PrefixTrees, list[np.ndarray], PrefixTrees | None, np.ndarray]:
        """The texts of M decisions.

        Returns:
            The trees of what was said; the states of each completion in them; the trees of prompts
            that follow and are not answered here, if there are any; and where `after` ends, counted
            through both.
        """
        prompts, completions, targets = self.view.prompts, self.view.completions, self.targets
        count = len(completions)
        keys = targets.prompt[decisions] * count + targets.completion[decisions]
        keys, which = np.unique(keys, return_inverse=True)
        said = [divmod(key, count) for key in keys.tolist()]
        # The last token of a completion is an action, and never a state.
        texts = [prompts[prompt] + completions[completion][:-1] for prompt, completion in said]
        trees = prefix_trees(texts, self.pad_token_id)
        states = [
            places[len(prompts[prompt]) - 1 :]
            for (prompt, _), places in zip(said, trees.places, strict=True)
        ]
        end = {prompt: places[0] for (prompt, _), places in zip(said, states, strict=True)}
        after, following = np.unique(targets.after[decisions], return_inverse=True)
        unanswered = [prompt for prompt in after.tolist() if prompt not in end]
        behind = None
        if unanswered:
            behind = prefix_trees([prompts[prompt] for prompt in unanswered], self.pad_token_id)
            last = [trees.input_ids.size + places[-1] for places in behind.places]
            end |= dict(zip(unanswered, last, strict=True))
        ends = np.array([end[prompt] for prompt in after.tolist()])
        return trees, [states[text] for text in which], behind, ends[following]

    def _tokens(
        self, decisions: np.ndarray, states: Sequence[np.ndarray], ends: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The T tokens of M completions: states, actions and what follows, each (T,)."""
        targets, lengths = self.targets, np.array([len(places) for places in states])
        completion_of, state = np.repeat(np.arange(len(states)), lengths), np.concatenate(states)
        to_come = np.cumsum(lengths)[completion_of] - 1 - np.arange(len(state))
        # Of its completion: the place of the text behind it, reward and discount of the last token.
        following = ends[completion_of]
        reward = targets.reward[decisions][completion_of]
        discount = targets.discount[decisions][completion_of]
        if self.multi_step:
            powers = self.gamma**to_come
            reward, discount = powers * reward, powers * discount
        else:
            last = to_come == 0
            following = np.where(last, following, np.roll(state, -1))
            reward = np.where(last, reward, 0.0)
            discount = np.where(last, discount, self.gamma)
        completions = [self.view.completions[number] for number in targets.completion[decisions]]
        return {
            "state": state,
            "next": following,
            "action": np.fromiter(chain.from_iterable(completions), np.int64, len(state)),
            "reward": reward,
            "discount": discount,
            "weight": self._weights[decisions][completion_of],
        }


def tree_batches(
    view: TokenView,
    targets: ValueTargets,
    settings: ValueConfig,
    multi_step: bool,
    pad_token_id: int,
) -> tuple[DecisionGroups, TreeCollator]:
    """The data set of a view's decisions, and what makes batches of its rows."""
    targets = targets.merged() if settings.group_by == "prompt" else targets
    groups = DecisionGroups(targets, settings.group_by)
    return groups, TreeCollator(view, targets, settings.gamma, multi_step, pad_token_id)


def trees(inputs: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The texts of a batch, as the value model takes them."""
    return {name: inputs[prefix + name] for name in TREES}
