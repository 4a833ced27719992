"""The config classes that several scripts share: plain values, no torch.

The string under each field is its help text: meaning, unit, source. Classes refuse senseless
values with `ValueError("field: expected ..., got ...")`, which `config.parsing.parse` reports
under the full key.

Where a field may be null so that its number follows from the world, `run_pipeline` sets it
(`RULES` of `stages/sizing.py`); other scripts refuse the null.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from lactchain.config.bounds import (
    AtLeast0,
    AtLeast1,
    Bound,
    Bounded,
    Count,
    NonNegative,
    NonPositive,
    Positive,
    PositiveShare,
    Share,
    tunable,
)
from lactchain.config.strategies import check_strategy

Config = TypeVar("Config")


def check(condition: bool, name: str, expected: str, value: object) -> None:
    """Raises the `ValueError` of a config field unless the condition holds."""
    if not condition:
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


def recast(config: Any, config_class: type[Config], **changes: Any) -> Config:
    """A config of another class: the fields that both have, and changes."""
    return config_class(**known_fields(config_class, vars(config)) | changes)


def known_fields(config_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some values that a config class has fields for."""
    return {item.name: values[item.name] for item in fields(config_class) if item.name in values}


@dataclass(frozen=True)
class RunConfig(Bounded):
    """Where the run lives and how it is repeated."""

    run_dir: str = "runs/default"
    """Folder of this run; the same command given again continues in it. Several machines have to
    share the file system that it is on."""
    seed: int = 0
    """Seed of everything random: python, numpy, torch, environments, sampling."""
    threads: AtLeast1 | None = 1
    """CPU threads of each process. Null: one for each core, which pays for models that are not
    tiny. Resuming is bit-exact for one thread."""
    timeout_minutes: Positive = 30.0
    """How long one of several processes waits for the others, who may be loading a model, writing
    a result, or making a file of episodes or pairs."""
    keep_checkpoints: bool = False
    """Keep checkpoints, with the optimiser's moments, when the run is finished."""
    report_to: list[str] = field(default_factory=list)
    """Trackers beside the local metrics.jsonl, which is always written: wandb, trackio,
    tensorboard."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.run_dir), "run_dir", "a folder", self.run_dir)
        check(0 <= self.seed < 2**32, "seed", "a number in [0, 2**32)", self.seed)
        known, trackers = {"wandb", "trackio", "tensorboard"}, self.report_to
        check(set(trackers) <= known, "report_to", f"names of {sorted(known)}", trackers)
        for name in trackers:
            how = f"pip install 'lactchain[{name}]' first"
            check(find_spec(name) is not None, "report_to", f"an installed tracker ({how})", name)


@dataclass(frozen=True)
class HeldBackConfig(Bounded):
    """States that are never practised, so that an evaluation tells what carries over to them."""

    share: Annotated[float, Bound(above=0, below=1)] = 0.2
    """Share of the start states, in (0, 1). Which ones is always the same, whatever the seed."""
    by: list[str] = field(default_factory=list)
    """Fields of a state, such as [goal_x, goal_y]: states that are equal in them are held back
    together, here whole goals, and the share is of these. None: each state by itself. [text]: all
    states that read alike when an episode begins."""


@dataclass(frozen=True)
class EnvironmentConfig(Bounded):
    """The world and how it is put into words."""

    id: str = "lactchain/GridWorld-v0"
    """Gymnasium id; or a world of others: openenv:URL, textarena:NAME, gem:NAME."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment, such as {size: 6}."""
    template: str | None = None
    """Text block of a state, with the fields of the environment's view in braces; null: the
    view's own; brief: its shortest, for models that pay for every token; relative: where the goal
    is as seen from the agent, in words, for models that read."""
    action_names: list[str] | None = None
    """The words of the actions, in the order of their numbers; null: the view's own."""
    extractor: Literal["json_list", "json_object", "code_block", "utterance"] = "json_list"
    """How a completion is read: a JSON list of actions, the founding object with "explain" and
    "moves", a fenced code block, or the whole text as a single action."""
    max_chain_length: AtLeast1 | None = 9
    """Longest legal chain, in actions. 9 is the longest of the shortest ways in the 4x4 grid. Null:
    follows from the world."""
    max_chains: AtLeast1 | None = None
    """Completions after which an episode is truncated; null: the view's own, 16 unless the world
    has a time limit in its rules."""
    history: AtLeast0 = 1
    """Observations and completions that the text of a state holds, the newest; 0: all since the
    episode began."""
    invalid_penalty: NonPositive | None = 0.0
    """Reward of a completion that is no chain. Maze and Wordle have their own rule. It need not be
    set: pairs prefer every chain anyway, and 0 keeps silence out of the returns. Null: follows from
    the world."""
    chain_cost: NonNegative | None = 0.0
    """Cost of each completion, subtracted from its reward; asks for few calls. Null: follows from
    the world."""
    held_back: HeldBackConfig | None = None
    """States that cloning, episodes and pairs never ask for a completion in; evaluations play from
    all, and tell both kinds apart. null: none."""


@dataclass(frozen=True)
class LoraSettings(Bounded):
    """A low-rank adapter (Hu et al. 2021) by PEFT."""

    r: AtLeast1 = 16
    """Rank."""
    alpha: Positive = 32.0
    """Scale; the update is multiplied by alpha / r."""
    target_modules: str | list[str] = "all-linear"
    """Names of the layers that get one, or all-linear."""


@dataclass(frozen=True)
class ModelConfig(Bounded):
    """A model and how it is loaded: what actors and critics share."""

    model: str = ""
    """Folder or hub id of the model."""
    dtype: Literal["auto", "float32", "bfloat16", "8bit", "4bit"] = "auto"
    """Weights' type. auto: bfloat16 where the device computes in it, else float32; 8bit, 4bit:
    quantised by bitsandbytes, under an adapter, computing in bfloat16; on CPUs to rehearse."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.model), "model", "a folder or hub id", self.model)

    @property
    def bits(self) -> Literal[4, 8] | None:
        """Of each weight, where the weights are quantised."""
        return {"4bit": 4, "8bit": 8}.get(self.dtype)


@dataclass(frozen=True)
class ServedConfig(Bounded):
    """Servers that generate in the place of this process, all with one model (docs/serving.md).

    A key is read from LACTCHAIN_SERVER_KEY, and never written down.
    """

    urls: list[str] = field(default_factory=list)
    """Their addresses, such as [http://node1:8000]."""
    dialect: Literal["vllm", "sglang", "text"] = "vllm"
    """How they are spoken to. text: any server with /v1/completions, in texts alone, without
    tokens, probabilities, adapters and constraints."""
    in_flight: AtLeast1 = 64
    """Requests of each process that wait for their answers at once, over all servers."""
    timeout_seconds: Positive = 120.0
    """How long an answer may take; and how long failing requests are tried again, while none at all
    is answered, before the run ends."""
    max_drift: Positive = 0.1
    """Mean distance of log-probabilities of tokens, the servers' from those computed here, above
    which a pipeline ends: they have other weights. It is measured before each round's episodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.urls), "urls", "at least one address", self.urls)
        for url in self.urls:
            hides = "none with a password: give the key by LACTCHAIN_SERVER_KEY"
            check("@" not in url, "urls", hides, url.rpartition("@")[2])
            is_server = re.fullmatch(r"https?://[^/\s?#]+[^\s?#]*", url) is not None
            check(is_server, "urls", "http(s)://host:port", url)


@dataclass(frozen=True)
class PlayerConfig(ModelConfig):
    """A language model that answers at temperature 1, and how it is asked."""

    model: str = "weights/tiny-actor"
    """Folder or hub id of a causal language model."""
    adapter: str | None = None
    """Folder of a LoRA adapter, such as runs/x/actor; null: none."""
    strategy: str = "none"
    """Instruction before each state: a name of the menu (`lactchain.models.prompting`), or your
    own text."""
    decoding: Literal["free", "constrained"] = "free"
    """free: sample, parse, penalise; constrained: only legal chains can be sampled."""
    max_new_tokens: AtLeast1 | None = 64
    """Longest completion, in tokens. Null: follows from the world."""
    served: ServedConfig | None = None
    """Servers that generate its completions; null: it is loaded and does so here."""

    temperature: ClassVar[float] = 1.0
    values: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strategy(self.strategy)


@dataclass(frozen=True)
class SamplerConfig(PlayerConfig):
    """A language model that answers at any temperature."""

    temperature: NonNegative = 1.0
    """Sampling temperature; 0 is greedy."""


@dataclass(frozen=True)
class ActorConfig(SamplerConfig):
    """A language model that learns, and how it is asked."""

    lora: LoraSettings | None = None
    """The adapter to train when none is given; null: train all weights."""


@dataclass(frozen=True)
class RankingConfig(Bounded):
    """How values rank all legal completions, where not by the sum of advantages as in LMRL-Gym."""

    by: Literal["sum", "first", "last"] = "sum"
    """sum: the advantages of all tokens; first: the value of the first token alone, for completions
    that it tells apart, such as words that are tokens; last: that of the last token alone,
    which has seen the whole completion. That is better where completions are spelt letter by letter
    and the conservative term is small (Wordle with letters apart)."""
    policy_weight: NonNegative = 0.0
    """Factor on the actor's own log probabilities beside the advantages: with 1 / value_weight it
    is the policy of free decoding whose best completion is taken, with 0 the values rank alone."""
    policy_floor: Share = 0.0
    """Added to the actor's probabilities before policy_weight takes their logarithm: among
    completions that are all rarer than this, the actor's preference hardly counts; little data may
    have taught it."""


@dataclass(frozen=True)
class GuidedActorConfig(SamplerConfig):
    """A language model whose completions trained values may guide."""

    decoding: Literal["free", "constrained", "scored"] = "free"
    """free: sample, parse, penalise; constrained: only legal chains can be sampled; scored: let
    `values` rank all legal chains."""
    values: str | None = None
    """Folder of trained values, such as runs/x/values, that guide the completions: by their
    advantages beside the actor's logits, or alone under scored decoding; null: none."""
    value_weight: NonNegative = 1.0
    """Factor beta on the advantages under free and constrained decoding (LMRL-Gym: 16 for ILQL in
    the maze, 32 in Wordle)."""
    ranking: RankingConfig = RankingConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        ranked = self.decoding == "scored"
        check(not ranked or self.values, "values", "trained values, which rank chains", self.values)


@dataclass(frozen=True)
class CriticConfig(ModelConfig):
    """The embedding model that values states, and the units of its values."""

    model: str = "weights/tiny-encoder"
    """Folder or hub id of an encoder."""
    checkpoint: str | None = None
    """Folder of a trained critic, such as runs/x/critic; null: a new one."""
    lora: LoraSettings | None = None
    """The adapter to train when no checkpoint is given; null: train all weights."""
    mode: Literal["value", "action_value"] = "value"
    """value: V(state); action_value: Q(state, chain)."""
    gamma: PositiveShare | None = 0.99
    """Discount, in (0, 1]. Null: follows from the world."""
    discount_per: Literal["action", "chain"] = "action"
    """What gamma counts: actions (semi-Markov return), or chains as in the founding document."""
    trace: Share = 0.5
    """λ of the returns that values are fitted to: of what follows a decision this share is as it
    came, and the rest the value of the state it led to. 1: returns as played; below, less of their
    luck, and more of the critic's own error."""
    frozen: bool = False
    """Leave the encoder as it is, and only solve for the head on its features."""
    pooling: Literal["last", "mean"] | None = None
    """Token whose embedding is read: the last one, as SFR-Embedding-Mistral, or the mean. Null: as
    the encoder's folder says (`modules.json`), the last where it says nothing."""
    instruction: str | None = None
    """Task before each text, as SFR-Embedding-Mistral was trained: `Instruct: {instruction}`, a
    line break, `Query: {text}`; or words around `{text}`. Null: the encoder's own, if any."""
    max_length: AtLeast1 = 512
    """Longest text, in tokens, instruction included; what is longer loses its beginning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.instruction != "", "instruction", "a task or null", self.instruction)


@dataclass(frozen=True)
class TrainingConfig(Bounded):
    """What people set of `transformers.TrainingArguments`."""

    num_epochs: Positive | None = 1.0
    """Passes over the data. Null: follows from the world."""
    learning_rate: Positive = tunable(1e-4, 1e-6, 1e-2, log=True)
    """Peak learning rate."""
    batch_size: AtLeast1 | None = 8
    """Rows per device and forward pass. Null: follows from the world, and from the number of
    processes."""
    max_steps: int = -1
    """Optimiser steps, over num_epochs when positive."""
    gradient_accumulation_steps: AtLeast1 = 1
    """Forward passes per optimiser step."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    save_every_updates: AtLeast0 = 100
    """Optimiser steps between checkpoints, of which two are kept; 0: only at the end."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Arguments of transformers.TrainingArguments for optimiser, schedule and logs, by their own
    names, such as {weight_decay: 0.01, logging_steps: 50}. Where none are given the learning rate
    rises over the first tenth of the steps and falls as a cosine, and every tenth is logged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, interval = self.max_steps, self.extra.get("logging_steps", 1)
        check(steps == -1 or steps > 0, "max_steps", "-1 or more than 0", steps)
        whole = isinstance(interval, int) and not isinstance(interval, bool) and interval >= 1
        check(whole, "extra.logging_steps", "a whole number, at least 1", interval)


@dataclass(frozen=True)
class CollectConfig(Bounded):
    """How many episodes are played, and how many at once."""

    num_episodes: Count | None = 1024
    """Episodes over all processes. Null: follows from the world."""
    num_envs: Count = 256
    """Episodes played side by side in each process, rows of a generation batch."""
    shard_size: AtLeast1 | None = 256
    """Episodes per trajectory file; a restarted run keeps the finished files. Null: follows from
    the world."""


@dataclass(frozen=True)
class PreferenceConfig(Bounded):
    """How preference pairs are made: K completions to each state, best against worst.

    A critic ranks them by their advantages, r + gamma^k V(next state) - V(state), under its own
    discount; without one what they earned does, at .99 an action.
    """

    num_states: Count | None = 4096
    """Start states, drawn uniformly from the state space (founding document). Null: follows from
    the world."""
    share_after_completion: Share | None = None
    """Share of these states that give way to texts of the middle of an episode, such as those that
    tell of a bump: recorded ones, where there are episodes (`trajectories`, and in a pipeline those
    of the critic where texts remember, or the world lists outcomes), or else what follows a
    completion of the actor's. Null: all texts of the episodes, or without any none."""
    num_candidates: Annotated[int, Bound(at_least=2)] | None = 8
    """K, completions of the current actor to each state. Null: follows from the world."""
    states_per_shard: AtLeast1 = 256
    """States per file of pairs; one batch samples all their completions, K times as many rows."""
    min_margin: NonNegative | None = 0.01
    """Smallest difference between chosen and rejected, in return units; pairs below it are
    dropped and counted. Null: follows from the world."""


@dataclass(frozen=True)
class SimPOConfig(Bounded):
    """The loss of SimPO (Meng, Xia, Chen 2024); defaults of its Mistral-7B-Instruct setup."""

    beta: Positive = tunable(2.5, 0.5, 10.0, log=True)
    """Scale of the difference of length-normalised log-probabilities."""
    target_margin: NonNegative = tunable(0.25, 0.0, 2.0)
    """Margin that the scaled difference should exceed: the paper's gamma, TRL's simpo_gamma
    (the paper tunes gamma / beta, here 0.1)."""
    nll_weight: NonNegative = tunable(0.0, 0.0, 20.0)
    """Weight of the negative log-likelihood of `chosen`, CPO's alpha; 0 in the paper, a little
    keeps small actors from collapsing."""
    preference_weight: NonNegative = 1.0
    """Weight of the preference loss itself; 0 leaves the likelihood of `chosen`, as a control."""
    target_kl: Positive | None = None
    """How far a training may move the policy: KL(sampling || new), in nats a completion, on 32 of
    the policy's own. An update that would go farther is shortened and the rate of those to come
    halved; at the third time the training ends. Null: no bound, the end alone is measured."""
