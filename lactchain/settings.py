"""The config classes that several scripts share: plain values, no torch.

The string under each field is its help text: meaning, unit, source. Classes refuse senseless
values with `ValueError("field: expected ..., got ...")`, which `lactchain.config.parse` reports
under the full key.
"""

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

from lactchain.config import command_line_only
from lactchain.genes import gene

Dtype = Literal["auto", "float32", "bfloat16"]

DATASET_ID = re.compile(r"([-_\w]+/)*[-_\w]+-v\d+")
"""What Minari calls a data set: names between slashes, and a version."""


def check(condition: bool, name: str, expected: str, value: object) -> None:
    """Raises the `ValueError` of a config field unless the condition holds."""
    if not condition:
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


@dataclass(frozen=True)
class RunConfig:
    """Where the run lives and how it is repeated."""

    run_dir: str = "runs/default"
    """Folder of this run; the same command given again continues in it. Several machines have to
    share the file system that it is on."""
    seed: int = 0
    """Seed of everything random: python, numpy, torch, environments, sampling."""
    resume: Literal["auto", "never", "must"] = "auto"
    """auto: continue where the folder stands; never: refuse a folder that holds a run; must:
    refuse a folder that holds none."""
    threads: int = 1
    """CPU threads of each process. Resuming is bit-exact for one thread."""
    timeout_minutes: float = 30.0
    """How long one of several processes waits for the others: longer than it takes to load a model,
    to write a result, or to make one file of episodes or pairs."""
    report_to: list[str] = field(default_factory=list)
    """Trackers beside the local metrics.jsonl, which is always written: wandb, trackio,
    tensorboard."""

    def __post_init__(self) -> None:
        check(bool(self.run_dir), "run_dir", "a folder", self.run_dir)
        check(0 <= self.seed < 2**32, "seed", "a number in [0, 2**32)", self.seed)
        check(self.threads >= 1, "threads", "at least 1", self.threads)
        minutes = self.timeout_minutes
        check(minutes > 0, "timeout_minutes", "a positive number", minutes)
        known = {"wandb", "trackio", "tensorboard"}
        check(
            set(self.report_to) <= known, "report_to", f"names of {sorted(known)}", self.report_to
        )
        for name in self.report_to:
            how = f"pip install -e '.[{name}]' first"
            check(find_spec(name) is not None, "report_to", f"an installed tracker ({how})", name)


@dataclass(frozen=True)
class EnvironmentConfig:
    """The world and how it is put into words."""

    id: str = "lactchain/GridWorld-v0"
    """Gymnasium id."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment, such as {size: 6}."""
    template: str | None = None
    """Text block of a state, with the fields of the environment's view in braces; null: the
    view's own."""
    action_names: list[str] | None = None
    """The words of the actions, in the order of their numbers; null: the view's own."""
    extractor: Literal["json_list", "json_object", "code_block", "utterance"] = "json_list"
    """How an answer is read: a JSON list of actions, the founding object with "explain" and
    "moves", a fenced code block, or the whole text as a single action."""
    max_chain_length: int = 9
    """Longest legal chain, in actions. 9 is the longest shortest path of the 4x4 grid."""
    max_chains: int | None = None
    """Answers after which an episode is truncated; null: the view's own, 16 unless the world has a
    time limit in its rules."""
    history: int = 1
    """Observations and answers that the text of a state holds, the newest ones; 0: all since the
    episode began."""
    invalid_penalty: float = 0.0
    """Reward of an answer that is no chain, at most 0. Maze and Wordle have a rule of their own."""
    chain_cost: float = 0.0
    """Cost of each answer, subtracted from its reward, at least 0; asks for few calls."""

    def __post_init__(self) -> None:
        check(bool(self.id), "id", "a Gymnasium id", self.id)
        check(self.max_chain_length >= 1, "max_chain_length", "at least 1", self.max_chain_length)
        check(
            self.max_chains is None or self.max_chains >= 1,
            "max_chains",
            "at least 1 or null",
            self.max_chains,
        )
        check(self.history >= 0, "history", "at least 0", self.history)
        check(self.invalid_penalty <= 0, "invalid_penalty", "at most 0", self.invalid_penalty)
        check(self.chain_cost >= 0, "chain_cost", "at least 0", self.chain_cost)


@dataclass(frozen=True)
class LoraSettings:
    """A low-rank adapter (Hu et al. 2021) by PEFT."""

    r: int = gene(16, 1, 64, log=True, integer=True)
    """Rank."""
    alpha: float = 32.0
    """Scale; the update is multiplied by alpha / r."""
    dropout: float = 0.0
    """Probability of dropping an input of the adapter, in training."""
    target_modules: str | list[str] = "all-linear"
    """Names of the layers that get one, or all-linear."""

    def __post_init__(self) -> None:
        check(self.r >= 1, "r", "at least 1", self.r)
        check(self.alpha > 0, "alpha", "a positive number", self.alpha)
        check(0 <= self.dropout < 1, "dropout", "a probability below 1", self.dropout)


@dataclass(frozen=True)
class ActorConfig:
    """The language model that answers, and how it is asked."""

    model: str = "weights/tiny-actor"
    """Folder or hub id of a causal language model."""
    adapter: str | None = None
    """Folder of a LoRA adapter, such as runs/x/actor; null: none."""
    lora: LoraSettings | None = None
    """The adapter to train when none is given; null: train all weights."""
    strategy: str = "none"
    """Instruction before each state: a name of the menu (`lactchain.models.prompting`), or your
    own text."""
    decoding: Literal["free", "constrained", "scored"] = "free"
    """free: sample, parse, penalise; constrained: only legal chains can be sampled; scored: rank
    sampled candidates."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    max_new_tokens: int = 64
    """Longest answer, in tokens."""
    num_candidates: int = 8
    """Candidates per state under scored decoding; with `values`, all legal answers are."""
    values: str | None = None
    """Folder of trained values, such as runs/x/values, that guide the answers: by their advantages
    beside the actor's logits, or alone under scored decoding; null: none."""
    value_weight: float = 1.0
    """Factor beta on the advantages under free and constrained decoding (LMRL-Gym: 16 for ILQL in
    the maze, 32 in Wordle)."""
    value_ranking: Literal["sum", "last"] = "sum"
    """How values rank answers. sum: the advantages of all tokens, as in LMRL-Gym; last: the value
    of the last token, before which the answer has been read whole, which is better where answers
    are spelt out and the conservative term is small (Wordle with letters apart)."""
    policy_weight: float = 0.0
    """Factor on the actor's own log probabilities beside the advantages that rank answers: with
    1 / value_weight it is the policy of free decoding whose best answer is taken, with 0 the
    values rank alone, as in LMRL-Gym."""
    policy_floor: float = 0.0
    """Added to the actor's probabilities of answers before that logarithm: among answers that are
    all rarer, its preference, which little data may have taught it, hardly counts."""
    dtype: Dtype = "auto"
    """Weights' type; auto: bfloat16 where the device computes in it, else float32."""
    load_in_4bit: bool = False
    """Quantise to 4 bits by bitsandbytes, under an adapter; on CPUs to rehearse."""
    load_in_8bit: bool = False
    """Quantise to 8 bits by bitsandbytes, under an adapter; on CPUs to rehearse."""
    trust_remote_code: bool = command_line_only(False)
    """Run the code of the model's repository (settable on the command line only; read it first)."""

    def __post_init__(self) -> None:
        check(bool(self.model), "model", "a folder or hub id", self.model)
        check(self.temperature >= 0, "temperature", "at least 0", self.temperature)
        check(self.max_new_tokens >= 1, "max_new_tokens", "at least 1", self.max_new_tokens)
        check(self.num_candidates >= 1, "num_candidates", "at least 1", self.num_candidates)
        check(self.value_weight >= 0, "value_weight", "at least 0", self.value_weight)
        check(self.policy_weight >= 0, "policy_weight", "at least 0", self.policy_weight)
        check(0 <= self.policy_floor <= 1, "policy_floor", "a share in [0, 1]", self.policy_floor)
        check(
            not (self.load_in_4bit and self.load_in_8bit),
            "load_in_8bit",
            "one of load_in_4bit and load_in_8bit",
            "both",
        )


@dataclass(frozen=True)
class CriticConfig:
    """The embedding model that values states, and the units of its values."""

    model: str = "weights/tiny-encoder"
    """Folder or hub id of an encoder."""
    checkpoint: str | None = None
    """Folder of a trained critic, such as runs/x/critic; null: a new one."""
    lora: LoraSettings | None = None
    """The adapter to train when no checkpoint is given; null: train all weights."""
    mode: Literal["value", "action_value"] = "value"
    """value: V(state); action_value: Q(state, chain)."""
    gamma: float = 0.99
    """Discount, in (0, 1]."""
    discount_per: Literal["action", "chain"] = "action"
    """What one factor of gamma stands for: a primitive action (semi-Markov return), or a whole
    chain as in the founding document."""
    pooling: Literal["last", "mean"] = "last"
    """Token whose embedding is read: the last one, as SFR-Embedding-Mistral, or the mean."""
    instruction: str | None = None
    """Task that the encoder is told before each text, as SFR-Embedding-Mistral was trained:
    `Instruct: {instruction}`, a line break, `Query: {text}`; null: none."""
    max_length: int = 512
    """Longest text, in tokens, instruction included; what is longer loses its beginning."""
    dtype: Dtype = "auto"
    """Weights' type; auto: bfloat16 where the device computes in it, else float32."""
    load_in_4bit: bool = False
    """Quantise to 4 bits by bitsandbytes, under an adapter; on CPUs to rehearse."""
    load_in_8bit: bool = False
    """Quantise to 8 bits by bitsandbytes, under an adapter; on CPUs to rehearse."""
    trust_remote_code: bool = command_line_only(False)
    """Run the code of the model's repository (settable on the command line only; read it first)."""

    def __post_init__(self) -> None:
        check(bool(self.model), "model", "a folder or hub id", self.model)
        check(0 < self.gamma <= 1, "gamma", "a number in (0, 1]", self.gamma)
        check(self.instruction != "", "instruction", "a task or null", self.instruction)
        check(self.max_length >= 1, "max_length", "at least 1", self.max_length)
        check(
            not (self.load_in_4bit and self.load_in_8bit),
            "load_in_8bit",
            "one of load_in_4bit and load_in_8bit",
            "both",
        )


@dataclass(frozen=True)
class TrainingConfig:
    """What people set of `transformers.TrainingArguments`; the rest goes through `extra`."""

    num_epochs: float = 1.0
    """Passes over the data."""
    max_steps: int = -1
    """Optimiser steps, over num_epochs when positive."""
    learning_rate: float = gene(1e-4, 1e-6, 1e-2, log=True)
    """Peak learning rate."""
    batch_size: int = 8
    """Rows per device and forward pass."""
    gradient_accumulation_steps: int = 1
    """Forward passes per optimiser step."""
    lr_scheduler_type: str = "cosine"
    """Schedule of the learning rate, a name that transformers knows."""
    warmup_ratio: float = 0.1
    """Share of the steps in which the learning rate rises to its peak."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    optim: str = "adamw_torch"
    """Optimiser, a name that transformers knows."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    save_every_updates: int = 0
    """Optimiser steps between checkpoints; 0: only at the end."""
    keep_checkpoints: int = 2
    """Checkpoints to keep; older ones go when a newer one is verified."""
    log_every_updates: int = 10
    """Optimiser steps between records of metrics.jsonl."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further arguments of transformers.TrainingArguments, by their own names."""

    def __post_init__(self) -> None:
        check(self.num_epochs > 0, "num_epochs", "a positive number", self.num_epochs)
        check(
            self.max_steps == -1 or self.max_steps > 0,
            "max_steps",
            "-1 or more than 0",
            self.max_steps,
        )
        check(self.learning_rate > 0, "learning_rate", "a positive number", self.learning_rate)
        for name in (
            "batch_size",
            "gradient_accumulation_steps",
            "keep_checkpoints",
            "log_every_updates",
        ):
            check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        check(0 <= self.warmup_ratio <= 1, "warmup_ratio", "a share in [0, 1]", self.warmup_ratio)
        check(self.weight_decay >= 0, "weight_decay", "at least 0", self.weight_decay)
        check(self.max_grad_norm > 0, "max_grad_norm", "a positive number", self.max_grad_norm)
        check(
            self.save_every_updates >= 0,
            "save_every_updates",
            "at least 0",
            self.save_every_updates,
        )


@dataclass(frozen=True)
class CollectConfig:
    """How many episodes are played, and how many at once."""

    num_episodes: int = 1024
    """Episodes over all processes."""
    num_envs: int = 256
    """Episodes played side by side in each process, rows of a generation batch."""
    shard_size: int = 256
    """Episodes per trajectory file; a restarted run keeps the finished files."""

    def __post_init__(self) -> None:
        for name in ("num_episodes", "num_envs", "shard_size"):
            check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))


@dataclass(frozen=True)
class PreferenceConfig:
    """How preference pairs are made: K answers to each state, best against worst."""

    num_states: int = 4096
    """Start states, drawn uniformly from the state space (founding document)."""
    num_candidates: int = 8
    """K, answers of the current actor to each state, at least 2."""
    states_per_shard: int = 256
    """States per file of pairs, whose answers are sampled in one batch of K times as many rows."""
    min_margin: float = 0.01
    """Smallest difference between chosen and rejected, in return units; pairs below it are
    dropped and counted."""
    rank_by: Literal["advantage", "return"] = "advantage"
    """advantage: r + gamma^k V(next state) - V(state) by the critic; return: what the chain
    earned, as it is always done without a critic."""
    gamma: float = 0.99
    """Discount of the returns where there is no critic; a critic brings its own."""
    discount_per: Literal["action", "chain"] = "action"
    """What one factor of gamma stands for, where there is no critic."""

    def __post_init__(self) -> None:
        for name in ("num_states", "states_per_shard"):
            check(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        check(self.num_candidates >= 2, "num_candidates", "at least 2", self.num_candidates)
        check(self.min_margin >= 0, "min_margin", "at least 0", self.min_margin)
        check(0 < self.gamma <= 1, "gamma", "a number in (0, 1]", self.gamma)


@dataclass(frozen=True)
class SimPOConfig:
    """The loss of SimPO (Meng, Xia, Chen 2024); defaults of its Mistral-7B-Instruct setup."""

    beta: float = gene(2.5, 0.5, 10.0, log=True)
    """Scale of the difference of length-normalised log-probabilities."""
    target_margin: float = gene(0.25, 0.0, 2.0)
    """Margin that the scaled difference should exceed: the paper's gamma, TRL's simpo_gamma
    (the paper tunes gamma / beta, here 0.1)."""
    nll_weight: float = 0.0
    """Weight of the negative log-likelihood of `chosen`, CPO's alpha; 0 in the paper, a little
    keeps small actors from collapsing."""
    preference_weight: float = 1.0
    """Weight of the preference loss itself; 0 leaves the likelihood of `chosen`, as a control."""

    def __post_init__(self) -> None:
        check(self.beta > 0, "beta", "a positive number", self.beta)
        check(self.target_margin >= 0, "target_margin", "at least 0", self.target_margin)
        check(self.nll_weight >= 0, "nll_weight", "at least 0", self.nll_weight)
        weight = self.preference_weight
        check(weight >= 0, "preference_weight", "at least 0", weight)


@dataclass(frozen=True)
class RegressionConfig:
    """How the critic learns from returns."""

    loss: Literal["mse", "smooth_l1"] = "mse"
    """mse: the values become mean returns; smooth_l1: rare huge returns count less, and skewed
    returns are valued towards their median."""
    td_lambda: float = 1.0
    """1: Monte-Carlo returns (founding document); below, lambda-returns that mix in the critic's
    own values of later states, computed anew at each epoch."""
    aggregate_duplicates: bool = True
    """Under mse: rows of equal text become one row with their mean target, weighted by their
    number. The same loss but for a constant, at a fraction of the time where states recur."""
    eval_fraction: float = 0.1
    """Share of the episodes held out, on which R2 and RMSE are measured; 0: none."""

    def __post_init__(self) -> None:
        check(0 <= self.td_lambda <= 1, "td_lambda", "a number in [0, 1]", self.td_lambda)
        check(0 <= self.eval_fraction < 1, "eval_fraction", "a share below 1", self.eval_fraction)


@dataclass(frozen=True)
class ValueConfig:
    """Offline learning of token values; the fields that MC and ILQL share."""

    gamma: float = 0.99
    """Discount of one token of the agent, in (0, 1]."""
    cql_weight: float = 0.01
    """Weight of the conservative term logsumexp Q(s, .) - Q(s, token), the cross-entropy of Q's
    softmax (LMRL-Gym: 0.5 in the maze, 0.01 in Wordle); it belongs to `error_weight`."""
    error_weight: float = 0.5
    """Factor on the squared errors of Q and V: 0.5 in LMRL-Gym, 1 elsewhere."""
    cloning_weight: float = 0.0
    """Weight of a cloning term. Above 0 the policy and the values share one trunk, and the result
    is an actor too; at 0 the values have their own."""
    head_size: int | None = None
    """Width of the heads' hidden layer; null: twice that of the trunk."""
    group_by: Literal["prompt", "episode"] = "prompt"
    """What a row of a batch is. prompt: a state with all that was answered to it, equal decisions
    merged and weighted by their number; episode: the decisions of one, for texts that grow and
    never recur. Either way what texts share is read once."""

    def __post_init__(self) -> None:
        check(0 < self.gamma <= 1, "gamma", "a number in (0, 1]", self.gamma)
        check(self.cql_weight >= 0, "cql_weight", "at least 0", self.cql_weight)
        check(self.error_weight > 0, "error_weight", "a positive number", self.error_weight)
        check(self.cloning_weight >= 0, "cloning_weight", "at least 0", self.cloning_weight)
        size = self.head_size
        check(size is None or size >= 1, "head_size", "at least 1 or null", size)


@dataclass(frozen=True)
class ILQLConfig(ValueConfig):
    """Implicit language Q-learning (Snell et al. 2022)."""

    expectile: float = 0.7
    """Expectile of V among the actions of the data, in (0, 1): the paper's tau. 0.99 in LMRL-Gym's
    maze, 0.7 in Wordle; towards 1, V is the best action's value."""
    tau: float = 0.005
    """Share of the trained parameters that the target network takes at each update (Polyak)."""
    bootstrap: Literal["token", "answer"] = "token"
    """Whose value the target of a token is. token: of the next one, as in the paper, which may
    piece an answer together; answer: of the text behind the answer, discounted for the tokens up to
    it (multi-step returns), for answers of which the first token is the decision."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0 < self.expectile < 1, "expectile", "a number in (0, 1)", self.expectile)
        check(0 < self.tau <= 1, "tau", "a number in (0, 1]", self.tau)


@dataclass(frozen=True)
class TinyModelConfig:
    """The shape of a tiny Mistral: about 0.9 million parameters unless a preset says otherwise."""

    hidden_size: int = 128
    """Width of the residual stream."""
    num_layers: int = 4
    """Transformer layers."""
    num_heads: int = 4
    """Attention heads."""
    num_kv_heads: int = 2
    """Heads of keys and values, shared by groups of attention heads."""
    intermediate_size: int = 384
    """Width of the MLP."""
    vocab_size: int = 1024
    """Tokens at most. A small corpus fills fewer, and at least the 256 bytes and the special
    tokens."""
    max_position_embeddings: int = 2048
    """Longest text, in tokens."""
    initializer_range: float = 0.02
    """Standard deviation of new weights."""

    def __post_init__(self) -> None:
        check(
            self.hidden_size % (2 * self.num_heads) == 0,
            "hidden_size",
            "a multiple of twice num_heads",
            self.hidden_size,
        )
        check(
            self.num_heads % self.num_kv_heads == 0,
            "num_kv_heads",
            "a divisor of num_heads",
            self.num_kv_heads,
        )
        check(self.vocab_size >= 261, "vocab_size", "at least 261", self.vocab_size)
