"""Trainers of token values on recorded episodes: Monte-Carlo values, and ILQL."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from lactchain.config.token_values import ILQLConfig, ValueConfig
from lactchain.data.token_view import TokenView, ValueTargets, monte_carlo_targets, one_step_targets
from lactchain.functional.token_losses import ilql_losses, monte_carlo_losses, weighted_mean
from lactchain.functional.tokens import token_logprobs
from lactchain.models.sharding import is_sharded
from lactchain.models.values import ValueModel
from lactchain.runs.run import read_metrics
from lactchain.trainers.base import HeadedTrainer
from lactchain.trainers.tree_batches import tree_batches, trees


class TokenValueTrainer(HeadedTrainer):
    """Trains a value model on the decisions of recorded episodes.

    A subclass says what its targets are and computes the losses of the tokens, of which the trainer
    takes means and their sum. With `settings.cloning_weight` the trunk is the policy's too, and
    `loss/cloning` is the mean negative log-likelihood of the tokens in the data.

    Metrics, means over the logging window: `loss/q`, `loss/v`, `loss/cql`, and `values/q` and
    `values/v`, the mean values of the tokens in the data and of their states.
    """

    num_q_heads: int
    has_target = False
    """Whether there is a target network."""

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
        groups, collator = tree_batches(
            view, targets, settings, multi_step, model.tokenizer.pad_token_id
        )
        super().__init__(
            model=model, args=args, data_collator=collator, train_dataset=groups, **kwargs
        )

    def targets(self, view: TokenView) -> tuple[ValueTargets, bool]:
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
        clones = self.settings.cloning_weight > 0
        values = model(trees(inputs), inputs["state_nodes"], inputs["next_nodes"], clones)
        values["v_next"] = torch.cat([values["v_next"], self._values_behind(inputs)])
        q = values["q"][:, state, action]
        logsumexp = values["q"].logsumexp(dim=-1)[:, state]
        losses = self.token_losses(values, q, logsumexp, inputs)
        if clones:
            losses["cloning"] = -token_logprobs(values["logits"][state], action)
        means = {name: weighted_mean(loss, weight) for name, loss in losses.items()}
        self.record(
            **{f"loss/{name}": mean for name, mean in means.items()},
            **{"values/q": q.amin(dim=0), "values/v": values["v"][state]},
        )
        error, cql = self.settings.error_weight, self.settings.cql_weight
        factors = {"q": error, "v": error, "cql": cql, "cloning": self.settings.cloning_weight}
        return shares[0] * sum(factors[name] * mean for name, mean in means.items())

    def _values_behind(self, inputs: dict[str, Tensor]) -> Tensor:
        """V of the prompts that follow and that the batch does not answer, (X,)."""
        if "behind_nodes" in inputs:
            return self.values.state_values(trees(inputs, "behind_"), inputs["behind_nodes"])
        if is_sharded(self.values):
            # Other processes may have some, and then wait for the weights that are here.
            one = {name: tensor[:1, :1] for name, tensor in trees(inputs).items()}
            return self.values.state_values(one, inputs["next_nodes"][:0])
        return inputs["reward"][:0]

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

    def targets(self, view: TokenView) -> tuple[ValueTargets, bool]:
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

    num_q_heads, has_target = 2, True
    settings: ILQLConfig

    def __init__(self, model: ValueModel, *args: Any, **kwargs: Any) -> None:
        model.start_target()
        super().__init__(model, *args, **kwargs)

    def set_epoch(self, epoch: int) -> None:
        """Spreads the target network as the model is by now, if it is at all."""
        self.values.spread_target()

    def update_taken(self) -> None:
        """Moves the target network, before a checkpoint is written."""
        super().update_taken()
        self.values.update_target(self.settings.tau)

    def targets(self, view: TokenView) -> tuple[ValueTargets, bool]:
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
    view = trainer.data_collator.view
    records = [r for r in read_metrics(trainer.run.directory) if "loss/q" in r]
    last = {k: v for r in records[-1:] for k, v in r.items() if k.startswith(("loss/", "values/"))}
    return {
        "num_decisions": len(view),
        "num_agent_tokens": int(view.num_tokens.sum()),
        "num_merged_decisions": len(trainer.data_collator.targets),
        **last,
    }
