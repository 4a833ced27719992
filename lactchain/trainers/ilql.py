"""ILQL: values of the best behaviour that the data supports, by in-sample Q-learning on tokens.

Source: Snell et al. 2022, "Offline RL for natural language generation with implicit language
Q-learning"; LMRL-Gym (Abdulhai et al. 2023) for the weights. With `bootstrap: answer` targets are
multi-step ones, as they never are there.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import TrainerCallback

from lactchain.data.token_view import TokenView, one_step_targets
from lactchain.functional.token_losses import ilql_losses
from lactchain.models.values import ValueModel
from lactchain.run import Run
from lactchain.settings import ILQLConfig
from lactchain.trainers.token_values import TokenValueTrainer, trees


class ILQLTrainer(TokenValueTrainer):
    """Double Q with a target network, V by expectile regression, a conservative term."""

    settings: ILQLConfig

    def __init__(
        self,
        model: ValueModel,
        args: Any,
        view: TokenView,
        settings: ILQLConfig,
        *,
        run: Run,
        **kwargs: Any,
    ) -> None:
        model.start_target()
        targets = one_step_targets(view, settings.gamma)
        multi_step = settings.bootstrap == "answer"
        super().__init__(model, args, view, targets, settings, multi_step, run=run, **kwargs)
        self.add_callback(TargetCallback(model, settings.tau))

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


class TargetCallback(TrainerCallback):
    """Moves the target network after each update, before a checkpoint is written."""

    def __init__(self, model: ValueModel, tau: float) -> None:
        self.model = model
        self.tau = tau

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """The model is sharded by now, if it is at all."""
        self.model.spread_target()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """One Polyak step."""
        self.model.update_target(self.tau)
