"""Worlds for TRL's `GRPOTrainer`: by tool calls, or by a rollout of our own where those are not.

    import lactchain_extras.trl as world
    rows = world.tasks(config)              # a task for each group of completions
    world.environment(config)               # environment_factory: one tool, which plays a chain
    world.rollout(config)                   # rollout_func, for templates without tools
    world.episode_return                    # the reward function beside a rollout

All members of a group play one task (`ecosystems.tasks`): one start, one seed. An episode is one
sequence: what the world says in between is masked out of the loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from lactchain.config.settings import EnvironmentConfig
from lactchain.config.strategies import resolve_strategy
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.errors import ConfigError
from lactchain.models.generation.decoding import Decoder
from lactchain.models.prompting import PromptTemplate
from lactchain.models.runtime import evaluating
from lactchain.types import Action
from lactchain_extras.ecosystems.tasks import Splits, begin, splits_of

if TYPE_CHECKING:
    from trl import GRPOTrainer

OVER = "The episode is over."
NO_TASK = (
    "train_dataset: expected a column task, so that all members of a group begin alike; make the "
    "rows by lactchain_extras.trl.tasks"
)
FEW_NAMES = 12
"""Actions that the description of the tool lists; of more it tells none."""


def tasks(
    config: EnvironmentConfig,
    count: int | None = None,
    strategy: str = "none",
    seeds: int = 1,
    panel: str | None = None,
) -> list[dict[str, Any]]:
    """Rows for `Dataset.from_list`: a prompt without its state, and the task that has it.

    Args:
        count: of tasks, the first ones; None: every start state that may be practised.
        strategy: the instruction before each state, a name of the menu or a text.
        seeds: of the dice of each task, a row for each. With one, what a task's dice bring is the
            same in every epoch, and can be learnt by heart: ask for many where chance has a part.
        panel: a file of tasks that others can cite, which are then these, by their numbers; the
            environment or the rollout has to be made with it, too.

    Raises:
        ConfigError: the world lists no start states, and no count of seeds is given.
    """
    env = make_language_env(config)
    splits = splits_of(env, config, panel)
    if not splits and count is None:
        expected = f"expected a number, {config.id} lists no states, so tasks are seeds"
        raise ConfigError(f"count: {expected}")
    most = len(next(iter(splits.values()), []))
    if count is None or (splits and count > most):
        count = most
    names, longest = env.grammar.action_names, env.grammar.max_chain_length
    text = resolve_strategy(strategy, names, longest)
    text = f"{text}\n\n" if text else ""
    starts = [
        {"task": task} | ({"seed": n * count + task} if seeds > 1 else {})
        for n in range(seeds)
        for task in range(count)
    ]
    return [{"prompt": [{"role": "user", "content": text, **start}], **start} for start in starts]


def episode_return(completions: Sequence[Any], episode_return: Sequence[float], **_) -> list[float]:
    """The reward function of `rollout`: what each episode earned."""
    return list(episode_return)


def _return(env: LanguageEnv, earned: float, over: bool) -> float:
    """The return of an episode; whoever stops before its end has said what is no chain."""
    return earned if over else earned + env.invalid_penalty - env.chain_cost


# --- by tool calls -------------------------------------------------------------------------------


def environment(config: EnvironmentConfig, panel: str | None = None) -> Callable[[], Player]:
    """The `environment_factory` of a world; its reward is the return of the episode.

    Chains are lists of actions, whatever extractor the configuration names.
    """
    config = replace(config, extractor="json_list")
    env = make_language_env(config)
    grammar, splits = env.grammar, splits_of(env, config, panel)
    names = grammar.action_names
    each = f", each one of {', '.join(map(repr, names))}" if 0 < len(names) <= FEW_NAMES else ""

    class WorldPlayer(Player):
        def play(self, chain: list[str]) -> str:
            return self._played(chain)

        play.__doc__ = (
            "Plays a chain of actions, one after the other, and tells the state that it leads to.\n"
            "\n"
            "Args:\n"
            f"    chain: the actions, at most {grammar.max_chain_length}{each}.\n"
            "\n"
            "Returns:\n"
            "    The state after the last action.\n"
        )

    WorldPlayer.__name__ = config.id.rpartition("/")[2].partition("-v")[0]
    return lambda: WorldPlayer(make_language_env(config), splits)


class Player:
    """What `GRPOTrainer` wants of an environment; every public method beside these is a tool."""

    def __init__(self, env: LanguageEnv, splits: Splits) -> None:
        self._env, self._splits = env, splits
        self._over, self._earned = True, 0.0
        self.success = False

    def reset(self, task: int | None = None, seed: int | None = None, **columns: Any) -> str:
        """The first state of a task; TRL gives the columns of the row, and adds it to its prompt.

        Raises:
            ConfigError: the row has no task, or one that is not there.
        """
        if task is None:
            raise ConfigError(NO_TASK)
        text, _ = begin(self._env, self._splits, task, seed=seed)
        self._over, self._earned, self.success = False, 0.0, False
        return text

    def get_reward(self) -> float:
        """The return of the episode."""
        return _return(self._env, self._earned, self._over)

    def _played(self, chain: list[str]) -> str:
        if self._over:
            return OVER
        completion = json.dumps(chain, ensure_ascii=False)
        text, reward, terminated, truncated, info = self._env.step(completion)
        self._earned += reward
        self._over, self.success = terminated or truncated, info["success"]
        return f"{text}\n{OVER}" if self._over else text


# --- by a rollout of our own ---------------------------------------------------------------------


def rollout(
    config: EnvironmentConfig, max_new_tokens: int = 64, panel: str | None = None
) -> Callable[..., dict[str, list]]:
    """The `rollout_func` of a world: conversations by the chat template, without tools.

    Completions are sampled from the trainer's own model in this process, at the trainer's
    temperature: neither vLLM nor sharded weights. The prompts are those of `tasks`. Beside what TRL
    asks for, rewards can be made of `episode_return`, `success` and `num_actions`, the actions that
    the episode took, what is no chain counting as one.

    Args:
        max_new_tokens: the longest completion of one turn; `max_completion_length` of the trainer
            is that of an episode, which is cut before a turn for which there is no room; such an
            episode pays once for what is no chain, as if that had been its last turn.
    """
    envs = [make_language_env(config)]
    splits = splits_of(envs[0], config, panel)

    def rollout_func(prompts: Sequence[Any], trainer: GRPOTrainer) -> dict[str, list]:
        envs.extend(make_language_env(config) for _ in range(len(envs), len(prompts)))
        template = cache(partial(PromptTemplate, trainer.processing_class))
        episodes = []
        for env, prompt in zip(envs, prompts, strict=False):
            message = prompt[-1] if isinstance(prompt, list) else {}
            if message.get("task") is None:
                raise ConfigError(NO_TASK)
            text, _ = begin(env, splits, message["task"], seed=message.get("seed"))
            asked_by = template(message["content"].rstrip() or "none")
            episodes.append(_Episode(env, asked_by, asked_by.encode(text)))
        _play(episodes, trainer, max_new_tokens)
        return {
            "prompt_ids": [episode.prompt for episode in episodes],
            "completion_ids": [episode.ids for episode in episodes],
            "logprobs": [episode.logprobs for episode in episodes],
            "env_mask": [episode.mask for episode in episodes],
            "episode_return": [_return(e.env, e.earned, e.over) for e in episodes],
            "success": [episode.success for episode in episodes],
            "num_actions": [episode.num_actions for episode in episodes],
        }

    return rollout_func


@dataclass
class _Episode:
    """An episode under way, as tokens.

    Attributes:
        prompt: ids of the first prompt.
        ids: of everything after it.
        logprobs, mask: one for each id; 0 where the world speaks.
        asked: ids of the world's turn that is not yet answered.
    """

    env: LanguageEnv
    template: PromptTemplate
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    earned: float = 0.0
    num_actions: int = 0
    success: bool = False
    over: bool = False

    def so_far(self) -> list[int]:
        """What the next completion follows."""
        self._add(self.asked, [0.0] * len(self.asked), 0)
        return self.prompt + self.ids

    def play(self, completion: Action, tokenizer: PreTrainedTokenizerBase) -> None:
        """Plays a completion."""
        self._add(completion.token_ids, completion.logprobs, 1)
        ended = completion.stop_reason == "stop"
        text = tokenizer.decode(completion.token_ids[:-1] if ended else completion.token_ids)
        observation, reward, terminated, truncated, info = self.env.step(text)
        self.earned += reward
        self.num_actions += max(1, len(info["executed"]))
        self.over, self.success = terminated or truncated, info["success"]
        end = [] if ended else [tokenizer.eos_token_id]
        self.asked = [*end, *self.template.encode_next(observation)]

    def _add(self, ids: Sequence[int], logprobs: Sequence[float], own: int) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.mask += [own] * len(ids)


def _play(episodes: Sequence[_Episode], trainer: GRPOTrainer, max_new_tokens: int) -> None:
    """Plays all episodes to their ends, or as far as there is room."""
    tokenizer, longest = trainer.processing_class, trainer.max_completion_length
    room = min(max_new_tokens, longest)
    model = trainer.accelerator.unwrap_model(trainer.model)
    limits = {"max_new_tokens": room, "temperature": trainer.temperature}
    decoder = Decoder(model, tokenizer.eos_token_id, **limits)
    with evaluating(model):  # no dropout in what is sampled
        while episodes:
            seeds = torch.randint(2**62, (len(episodes),)).tolist()
            completions = decoder.sample([episode.so_far() for episode in episodes], seeds)
            for episode, completion in zip(episodes, completions, strict=True):
                episode.play(completion, tokenizer)
            episodes = [
                episode
                for episode in episodes
                if not episode.over and len(episode.ids) + len(episode.asked) + room <= longest
            ]
