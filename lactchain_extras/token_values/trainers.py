"""Trainers of token values on recorded episodes: Monte-Carlo values, and ILQL.

Batches are prefix trees, in which what several texts share is read once. A row of the data set is a
group of decisions that are read together (`ValueConfig.group_by`). A batch holds every text once
that its decisions need, and apart from them what only targets need: it takes no gradient, and no
target network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from lactchain.errors import ConfigError
from lactchain.runs.run import read_metrics
from lactchain.trainers.base import HeadedTrainer
from lactchain_extras.token_values.losses import ilql_losses, monte_carlo_losses, weighted_mean
from lactchain_extras.token_values.model import ValueModel
from lactchain_extras.token_values.settings import ILQLConfig, ValueConfig
from lactchain_extras.token_values.token_view import (
    TokenView,
    monte_carlo_targets,
    one_step_targets,
)
from lactchain_extras.token_values.trees import TREES, PrefixTrees, prefix_trees

ERROR_WEIGHT = 0.5
"""Factor on the squared errors of Q and V, as in LMRL-Gym."""


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
        targets: the decisions, and what their values regress on.
        multi_step: whether every token of a completion leads to what follows the completion, or
            each to the one behind it, and the last one to what follows.
    """

    targets: TokenView
    gamma: float
    multi_step: bool
    pad_token_id: int

    def __post_init__(self) -> None:
        weights = self.targets.weights
        self._weights = weights / np.average(weights, weights=self.targets.num_tokens)

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """The batch of these groups."""
        decisions = np.concatenate([row["decisions"] for row in rows])
        trees, states, behind, ends = self._lay_out(decisions)
        batch = self._tokens(decisions, states, ends)
        batch["state_nodes"], batch["state"] = np.unique(batch["state"], return_inverse=True)
        nodes, batch["next"] = np.unique(batch["next"], return_inverse=True)
        size = trees.input_ids.size
        batch["next_nodes"] = nodes[nodes < size]
        batch |= trees.arrays
        if behind is not None:
            batch |= {f"behind_{name}": array for name, array in behind.arrays.items()}
            batch["behind_nodes"] = nodes[nodes >= size] - size
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        return {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}

    def _lay_out(
        self, decisions: np.ndarray
    ) -> tuple[PrefixTrees, list[np.ndarray], PrefixTrees | None, np.ndarray]:
        """The texts of M decisions.

        Returns:
            The trees of what was said; the states of each completion in them; the trees of prompts
            that follow and are not answered here, if there are any; and where what follows each
            decision ends, counted through both.
        """
        targets, prompts, completions = self.targets, self.targets.prompts, self.targets.completions
        count = len(completions)
        keys = targets.prompt_tm1[decisions] * count + targets.completion_tm1[decisions]
        keys, which = np.unique(keys, return_inverse=True)
        answered = [divmod(key, count) for key in keys.tolist()]
        # The last token of a completion is an action, and never a state.
        texts = [prompts[prompt] + completions[completion][:-1] for prompt, completion in answered]
        trees = prefix_trees(texts, self.pad_token_id)
        both = zip(answered, trees.places, strict=True)
        states = [places[len(prompts[prompt]) - 1 :] for (prompt, _), places in both]
        end = {prompt: places[0] for (prompt, _), places in zip(answered, states, strict=True)}
        after, following = np.unique(targets.prompt_t[decisions], return_inverse=True)
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
        reward = targets.rewards[decisions][completion_of]
        discount = targets.discounts[decisions][completion_of]
        if self.multi_step:
            powers = self.gamma**to_come
            reward, discount = powers * reward, powers * discount
        else:
            last = to_come == 0
            following = np.where(last, following, np.roll(state, -1))
            reward = np.where(last, reward, 0.0)
            discount = np.where(last, discount, self.gamma)
        completions = [targets.completions[n] for n in targets.completion_tm1[decisions]]
        return {
            "state": state,
            "next": following,
            "action": np.fromiter(chain.from_iterable(completions), np.int64, len(state)),
            "reward": reward,
            "discount": discount,
            "weight": self._weights[decisions][completion_of],
        }


def trees(inputs: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The texts of a batch, as the value model takes them."""
    return {name: inputs[prefix + name] for name in TREES}


class TokenValueTrainer(HeadedTrainer):
    """Trains a value model on the decisions of recorded episodes.

    A subclass says what its targets are and computes the losses of the tokens, of which the trainer
    takes means and their sum. Weights are whole in each process.

    Metrics, means over the logging window: `loss/q`, `loss/v`, `loss/cql`, and `values/q` and
    `values/v`, the mean values of the tokens in the data and of their states.
    """

    num_q_heads: int

    def __init__(
        self,
        model: ValueModel,
        args: TrainingArguments,
        view: TokenView,
        settings: ValueConfig,
        **kwargs: Any,
    ) -> None:
        self.values = model
        self.settings = settings
        targets, multi_step = self.targets(view)
        if settings.group_by == "prompt":
            targets = targets.merged()
        pad_token_id = model.tokenizer.pad_token_id
        super().__init__(
            model=model,
            args=args,
            data_collator=TreeCollator(targets, settings.gamma, multi_step, pad_token_id),
            train_dataset=[{"decisions": group} for group in targets.groups(settings.group_by)],
            **kwargs,
        )
        if self.is_fsdp_enabled:
            what = "expected whole weights in each process, got FSDP"
            mend = "launch with configs/accelerate/multi_gpu.yaml"
            raise ConfigError(f"values of tokens: {what}; {mend}")

    def targets(self, view: TokenView) -> tuple[TokenView, bool]:
        """What values are fitted to; and whether every token of a completion leads behind it."""
        raise NotImplementedError

    def token_losses(
        self, values: dict[str, Tensor], q: Tensor, logsumexp: Tensor, inputs: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Losses (T,) by name, from what the model computed at the nodes.

        Args:
            values: as `ValueModel.forward` gives them.
            q, logsumexp: (num_q_heads, T) of the tokens in the data and of their states.
            inputs: the batch of `TreeCollator`.
        """
        raise NotImplementedError

    def loss_of(self, model: nn.Module, inputs: dict[str, Tensor], shares: Tensor) -> Tensor:
        """Mean loss of the agent's tokens in the batch."""
        state, action, weight = inputs["state"], inputs["action"], inputs["weight"]
        values = model(trees(inputs), inputs["state_nodes"], inputs["next_nodes"])
        if "behind_nodes" in inputs:  # prompts that follow, and that the batch does not answer
            behind = self.values.state_values(trees(inputs, "behind_"), inputs["behind_nodes"])
            values["v_next"] = torch.cat([values["v_next"], behind])
        q = values["q"][:, state, action]
        logsumexp = values["q"].logsumexp(dim=-1)[:, state]
        losses = self.token_losses(values, q, logsumexp, inputs)
        means = {name: weighted_mean(loss, weight) for name, loss in losses.items()}
        figures = {f"loss/{name}": mean for name, mean in means.items()}
        self.record(**figures, **{"values/q": q.amin(dim=0), "values/v": values["v"][state]})
        factors = {"q": ERROR_WEIGHT, "v": ERROR_WEIGHT, "cql": self.settings.cql_weight}
        return shares[0] * sum(factors[name] * mean for name, mean in means.items())

    def num_items(self, inputs: dict[str, Tensor]) -> Tensor:
        """Tokens of the agent."""
        return torch.tensor([len(inputs["state"])], device=inputs["state"].device)


class MonteCarloTrainer(TokenValueTrainer):
    """Fits Q(s, token) and V(s) to what the behaviour in the data earned behind the tokens.

    Source: LMRL-Gym (Abdulhai et al. 2023). Departures: (1) an episode that was cut ends with the
    value of its last text, not with 0; (2) hence a head for V, whose regression is added, and which
    also gives advantages.
    """

    num_q_heads = 1

    def targets(self, view: TokenView) -> tuple[TokenView, bool]:
        """Returns, of which every token of a completion has its share."""
        return monte_carlo_targets(view, self.settings.gamma), True

    def token_losses(
        self, values: dict[str, Tensor], q: Tensor, logsumexp: Tensor, inputs: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The regressions of Q and V on returns, and the conservative term."""
        returns = inputs["reward"] + inputs["discount"] * values["v_next"][inputs["next"]]
        return monte_carlo_losses(q, logsumexp, values["v"][inputs["state"]], returns)


class ILQLTrainer(TokenValueTrainer):
    """Values of the best behaviour that the data supports, by in-sample Q-learning on tokens.

    Double Q with a target network, V by expectile regression, a conservative term. Source: Snell
    et al. 2022, "Offline RL for natural language generation with implicit language Q-learning";
    LMRL-Gym (Abdulhai et al. 2023) for the weights. With `bootstrap: completion` targets are
    multi-step ones, as they never are there.
    """

    num_q_heads = 2
    settings: ILQLConfig

    def __init__(self, model: ValueModel, *args: Any, **kwargs: Any) -> None:
        model.start_target()
        super().__init__(model, *args, **kwargs)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Moves the target network, before a checkpoint is written."""
        super().on_step_end(args, state, control, **kwargs)
        self.values.update_target(self.settings.tau)

    def targets(self, view: TokenView) -> tuple[TokenView, bool]:
        """What followed one decision."""
        return one_step_targets(view, self.settings.gamma), self.settings.bootstrap == "completion"

    def token_losses(
        self, values: dict[str, Tensor], q: Tensor, logsumexp: Tensor, inputs: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """ILQL's three losses."""
        state, action = inputs["state"], inputs["action"]
        target_q = self.values.target_q(trees(inputs), inputs["state_nodes"])
        return ilql_losses(
            q,
            logsumexp,
            values["v"][state],
            target_q[state, action],
            inputs["reward"],
            inputs["discount"],
            values["v_next"][inputs["next"]],
            self.settings.expectile,
        )


TRAINERS = {"mc": MonteCarloTrainer, "ilql": ILQLTrainer}
"""By method."""


def training_figures(trainer: TokenValueTrainer) -> dict[str, float]:
    """The size of the data, and the last losses and mean values of the run."""
    targets = trainer.data_collator.targets
    records = [r for r in read_metrics(trainer.run.directory) if "loss/q" in r]
    last = {k: v for r in records[-1:] for k, v in r.items() if k.startswith(("loss/", "values/"))}
    return {
        "num_decisions": int(targets.weights.sum()),
        "num_agent_tokens": int(targets.weights @ targets.num_tokens),
        "num_merged_decisions": len(targets),
        **last,
    }
