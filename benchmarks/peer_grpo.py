"""GRPO for `peers.py`, by TRL's own trainer: whole episodes, or exact groups of one state.

Nothing is masked or weighted by how probable a whole sequence is. Ratios and their clipping are of
tokens (`importance_sampling_level`), and what corrects for the sampler truncates the ratio of each
token: TRL's default multiplies them over a sequence, and gives weight 0 to every sequence where the
product is above 3. A hundred tokens that each differ by 1.2 %, as between two engines, come to 3.3:
with several turns nearly every episode is dropped, and training stands still. Here completions are
sampled by the trainer's own model, so that all ratios are 1; and what the world says is masked out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peer_methods import (
    NUM_ENVS,
    Course,
    Paused,
    asks_texts,
    num_env_steps,
    play_groups,
    starts_of_groups,
)
from peer_worlds import as_measured
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

from lactchain.config.settings import SamplerConfig, recast
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import make_language_env
from lactchain.models.actor import LanguageActor
from lactchain.models.loading import load_actor
from lactchain.runs.process import seed_everything
from lactchain.types import Trajectory
from lactchain_extras.trl import episode_return, rollout, tasks

TOKEN_BY_TOKEN = {
    "importance_sampling_level": "token",
    "vllm_importance_sampling_mode": "token_truncate",
    "off_policy_mask_threshold": None,
}
"""See the docstring of the module."""

MARKS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85)
"""Shares of the budget after which the actor is measured, beside the end."""

LONGEST_TALK = 768
"""Tokens of an episode, as TRL sees it."""

NUM_ROWS = 4096
"""Of data sets whose rows name no state."""

RolloutFunc = Callable[..., dict[str, list]]


def grpo(course: Course, dice: int = 1, **settings: Any) -> None:
    """Whole episodes, as docs/ecosystems.md has it.

    Args:
        dice: seeds for each start state, where the world throws dice.
    """
    rows = tasks(course.practised, seeds=dice)
    played = rollout(course.practised, course.config.actor.max_new_tokens)
    train(course, rows, played, **settings)


def grpo_states(course: Course, gamma: float | None = None, **settings: Any) -> None:
    """Groups of answers to one state, each played on to the end by the same policy.

    Args:
        gamma: of the returns that rank the members; None: the critic's of the pipeline.
    """
    gamma = course.config.critic.config.gamma if gamma is None else gamma
    num_generations = settings.get("num_generations", 8)
    played = StateGroups(course, num_generations, gamma)
    rows = [
        {"prompt": [{"role": "user", "content": "", "task": n}], "task": n} for n in range(NUM_ROWS)
    ]
    train(course, rows, played, **settings)


@dataclass
class StateGroups:
    """A `rollout_func`: members of a group answer one state; only these answers are learnt.

    States are drawn anew for each group, whatever the prompt; where they are reached by playing,
    from the episodes of the update before.
    """

    course: Course
    size: int
    gamma: float

    def __post_init__(self) -> None:
        config = self.course.config.actor
        self.rollouts = Rollouts(self.course.practised, NUM_ENVS)
        self.asks_texts = asks_texts(self.rollouts.env)
        self.played: list[Trajectory] = []
        self.sampler = recast(config, SamplerConfig, decoding="free")

    def __call__(self, prompts: Sequence[Any], trainer: GRPOTrainer) -> dict[str, list]:
        """What TRL asks for, of each member's answer to its group's state."""
        grammar, tokenizer = self.rollouts.env.grammar, trainer.processing_class
        model = trainer.accelerator.unwrap_model(trainer.model).eval()
        config = replace(self.sampler, temperature=trainer.temperature)
        actor = LanguageActor(model, tokenizer, config, grammar)
        seed, count = int(torch.randint(2**62, ())), len(prompts) // self.size
        starts = starts_of_groups(self.rollouts, self.played, count, seed)
        groups = play_groups(actor, self.rollouts, starts, self.size, seed)
        model.train()
        members = [member for group in groups for member in group]
        self.played = members if self.asks_texts else []
        answers = [member.actions[0] for member in members]
        texts = [member.observations[0] for member in members]
        return {
            "prompt_ids": actor.template.encode_batch(texts),
            "completion_ids": [list(answer.token_ids) for answer in answers],
            "logprobs": [list(answer.logprobs) for answer in answers],
            "episode_return": [float(member.returns(self.gamma)[0]) for member in members],
            "num_actions": [num_env_steps([member]) for member in members],
        }


def train(
    course: Course,
    rows: Sequence[Mapping[str, Any]],
    rollout_func: RolloutFunc,
    num_episodes: int = 256,
    **settings: Any,
) -> None:
    """TRL's trainer until the course is over; goes on from its last checkpoint.

    Args:
        num_episodes: of each update, over all groups.
        settings: of `GRPOConfig`, over those here.
    """
    seed_everything(course.seed, 1)
    model, tokenizer = load_actor(course.config.actor, trainable=True)
    watch = Watch(course, tokenizer)
    if watch.is_over():
        return
    folder = course.folder / "trl"
    trainer = GRPOTrainer(
        model,
        episode_return,
        grpo_config(folder, course.seed, per_device_train_batch_size=num_episodes, **settings),
        Dataset.from_list(list(rows)),
        processing_class=tokenizer,
        rollout_func=partial(watch.counted, rollout_func),
        callbacks=[watch],
    )
    last = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    if watch.failure is not None:
        raise watch.failure


def grpo_config(folder: Path, seed: int, **settings: Any) -> GRPOConfig:
    """TRL's settings for a tiny actor on a CPU, those of `TOKEN_BY_TOKEN` among them."""
    common = {
        "num_generations": 8, "num_iterations": 4, "learning_rate": 5e-4, "warmup_steps": 5,
        "lr_scheduler_type": "constant_with_warmup", "max_steps": 100_000, "seed": seed,
        "max_completion_length": LONGEST_TALK, "save_strategy": "steps", "save_steps": 1_000_000,
        "save_total_limit": 1, "report_to": [], "use_cpu": True, "bf16": False,
        "activation_checkpointing": False, "disable_tqdm": True, "logging_steps": 50,
    }  # fmt: skip
    return GRPOConfig(str(folder), **common | TOKEN_BY_TOKEN | settings)


class Watch(TrainerCallback):
    """Counts steps, saves at the marks of the budget, and tells the course what is saved.

    Attributes:
        num_env_steps: so far.
        latest: of the last update.
        failure: what stopped the training before its end.
    """

    def __init__(self, course: Course, tokenizer: Any) -> None:
        self.course, self.tokenizer = course, tokenizer
        self.num_env_steps = course.points[-1]["num_env_steps"]
        self.latest = course.points[-1].get("latest", 0)
        self.failure: Paused | None = None

    def counted(self, rollout_func: RolloutFunc, *arguments: Any) -> dict[str, list]:
        """What a rollout returns; its actions are counted."""
        played = rollout_func(*arguments)
        self.latest = sum(played["num_actions"])
        self.num_env_steps += self.latest
        return played

    def is_over(self) -> bool:
        """Whether another update like the last does not fit into the budget."""
        return not self.course.has_room(self.num_env_steps, self.latest)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Saves where the next mark is passed, and where more do not fit in; groups are used up."""
        if state.global_step % args.num_iterations:
            return control
        spent = self.is_over()
        marks = [share * self.course.world.budget for share in MARKS]
        measured = self.course.points[-1]["num_env_steps"]
        passed = any(measured < mark <= self.num_env_steps for mark in marks)
        control.should_save, control.should_training_stop = passed or spent, spent
        return control

    def on_save(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> Any:
        """Measures what was saved."""
        course = self.course
        grammar = make_language_env(course.config.environment).grammar
        config = as_measured(course.config.actor)
        model.eval()
        actor = LanguageActor(model, self.tokenizer, config, grammar)
        noted = {"update": state.global_step, "latest": self.latest}
        try:
            course.point(self.num_env_steps, actor, **noted)
        except Paused as pause:  # the trainer ends in good order first
            self.failure, control.should_training_stop = pause, True
        model.train()
        return control


METHODS = {"grpo": grpo, "grpo_states": grpo_states}
