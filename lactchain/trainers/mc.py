"""Monte-Carlo values of tokens: what the behaviour in the data earned behind them.

Source: LMRL-Gym (Abdulhai et al. 2023). Departures: (1) an episode that was cut ends with the value
of its last text, not with 0; (2) hence a head for V, whose regression is added, and which also
gives advantages.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lactchain.data.token_view import TokenView, monte_carlo_targets
from lactchain.functional.token_losses import monte_carlo_losses
from lactchain.models.values import ValueModel
from lactchain.run import Run
from lactchain.settings import ValueConfig
from lactchain.trainers.token_values import TokenValueTrainer


class MonteCarloTrainer(TokenValueTrainer):
    """Fits Q(s, token) and V(s) to the returns behind the tokens."""

    def __init__(
        self,
        model: ValueModel,
        args: Any,
        view: TokenView,
        settings: ValueConfig,
        *,
        run: Run,
        **kwargs: Any,
    ) -> None:
        targets = monte_carlo_targets(view, settings.gamma)
        super().__init__(model, args, view, targets, settings, multi_step=True, run=run, **kwargs)

    def token_losses(
        self, values: dict[str, Tensor], q: Tensor, logsumexp: Tensor, inputs: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The regressions of Q and V on returns, and the conservative term."""
        returns = inputs["reward"] + inputs["discount"] * values["v_next"][inputs["next"]]
        return monte_carlo_losses(q, logsumexp, values["v"][inputs["state"]], returns)
