"""Cloning that ends when the actor reads: not after a number of chains, which differs by model."""

import logging
from collections.abc import Sequence

import torch
from transformers import TrainerCallback

from lactchain.config.settings import ActorConfig
from lactchain.data.samples import retrieval_figures
from lactchain.environments.language import LanguageEnv
from lactchain.models.actor import LanguageActor
from lactchain.trainers.guards import GuardedTrainer

NUM_LOOKS = 8
"""How often one looks, over a whole training: a look costs as much as some updates."""

NUM_STATES = 32
"""States that are asked each time."""

MIN_SKILL = 0.2
"""Retrieval skill of one that reads: who says the same to all states has 0, and rounds have made
actors of .22 to .47 better."""

MIN_ANSWERED = 0.9
"""Share of the completions that have to be chains."""

log = logging.getLogger(__name__)


class ReadingCheck(TrainerCallback):
    """Asks the actor in training now and then, and ends the training once it reads.

    Args:
        actor: how it is asked; it answers freely, at temperature 1.
        observations: of which some are asked, the same each time.

    """

    def __init__(
        self,
        trainer: GuardedTrainer,
        target_skill: float,
        actor: ActorConfig,
        env: LanguageEnv,
        observations: Sequence[str],
        seed: int,
    ) -> None:
        self._trainer, self._target_skill, self._actor = trainer, target_skill, actor
        self._env, self._observations, self._seed = env, observations, seed
        self._last: tuple[int, dict[str, float]] = -1, {}

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Looks when it is time to."""
        due = state.global_step % max(1, state.max_steps // NUM_LOOKS) == 0
        if not due or state.global_step >= state.max_steps:
            return
        figures = self.figures()
        self._trainer.record(
            **{f"reading/{name}": torch.tensor(value) for name, value in figures.items()}
        )
        if reads(figures, self._target_skill):
            log.info("the actor reads after %d updates: the cloning ends", state.global_step)
            state.max_steps = state.global_step  # so that a resumed run knows it is finished
            control.should_log = control.should_save = control.should_training_stop = True

    def figures(self) -> dict[str, float]:
        """Those of `retrieval_figures`, of the actor as it stands; the same on all processes."""
        trainer = self._trainer
        step, found = self._last
        if step == trainer.state.global_step:
            return found
        with trainer.compute_loss_context_manager():
            actor = LanguageActor(
                trainer.model, trainer.processing_class, self._actor, self._env.grammar
            )
            found = retrieval_figures(
                actor,
                self._env,
                self._observations,
                self._seed,
                num_states=NUM_STATES,
            )
        self._last = trainer.state.global_step, found
        return found


def reads(figures: dict[str, float], min_skill: float) -> bool:
    """Whether an actor answers in chains, and to what it is asked."""
    skill = figures.get("retrieval_skill", 0.0)
    return skill >= min_skill and figures["answered_rate"] >= MIN_ANSWERED
