"""The value model of offline learning: a trunk with heads for Q(s, token) and V(s).

The trunk is a causal language model as the actor is, by LoRA or with all its weights; the state of
a token is the hidden state before it. Heads are evaluated where the agent speaks, and nowhere
else. The target network Q̂ is a slow copy of what is trained in trunk and Q heads: with LoRA the
base model is there once.
"""

import copy
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lactchain.config.settings import ActorConfig, PlayerConfig
from lactchain.errors import DataError, NonFiniteError
from lactchain.models.adapters import base_folder
from lactchain.models.attention import additive_mask, check_family
from lactchain.models.headed import HeadedModel, at_stored_precision, in_float32, is_adapted
from lactchain.models.loading import load_actor
from lactchain.models.runtime import evaluating, put
from lactchain.models.weights import read_tensors
from lactchain.storage.files import read_versioned_json
from lactchain.storage.manifests import verify_manifest_if_any
from lactchain_extras.token_values.trees import seen_in_tree


@dataclass(frozen=True)
class ValueMeaning:
    """What the numbers of a value model mean, stored with its weights."""

    method: str
    """Of learning: "ilql" or "mc"."""
    gamma: float
    """Discount of one token of the agent."""
    strategy: str
    """The instruction before each observation."""
    num_q_heads: int
    """Of which the least counts."""
    head_size: int
    """Width of the heads' hidden layer."""


class ValueHead(nn.Sequential):
    """Hidden states (…, D) → values (…, N), in float32, by one hidden layer.

    N is the vocabulary for Q(s, ·), and 1 for V(s). The last layer starts at weights 0 and a bias
    of about the average return, `start` (LMRL-Gym, Abdulhai et al. 2023), so that learning begins
    with differences and not with the level.
    """

    def __init__(self, width: int, hidden_size: int, num_outputs: int, start: float = 0.0) -> None:
        layers = nn.Linear(width, hidden_size), nn.ReLU(), nn.Linear(hidden_size, num_outputs)
        super().__init__(*layers)
        nn.init.zeros_(self[-1].weight)
        if not abs(start) <= torch.finfo(torch.float32).max:
            what = f"expected returns of which the mean is a float32 number, got {start:g}"
            raise NonFiniteError(f"values: {what}; make the rewards smaller")
        nn.init.constant_(self[-1].bias, start)

    def forward(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        """Values; some of the outputs if so asked."""
        first, activation, last = self
        inner = activation(in_float32(hidden, first.weight, first.bias))
        if columns is None:
            return in_float32(inner, last.weight, last.bias)
        return in_float32(inner, last.weight[columns], last.bias[columns])


class ValueModel(HeadedModel):
    """Q_i(s, ·) and V(s) at given tokens of a causal language model.

    New heads draw from torch's random state; their values are `start`.

    Attributes:
        trunk: the causal language model.
        q_heads, v_head: the heads.
        target: the parameters of the target network by their names here; empty without one.

    Raises:
        ConfigError: the trunk is of a family whose attention cannot read trees of texts.
    """

    config_file = "values_config.json"

    def __init__(
        self,
        trunk: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        meaning: ValueMeaning,
        start: float = 0.0,
    ) -> None:
        check_family(trunk)
        super().__init__(trunk, tokenizer)
        self.meaning = meaning
        output = trunk.get_output_embeddings().weight
        sizes = output.shape[1], meaning.head_size
        heads = [ValueHead(*sizes, output.shape[0], start) for _ in range(meaning.num_q_heads)]
        self.q_heads = nn.ModuleList(heads).to(output.device)
        self.v_head = ValueHead(*sizes, 1, start).to(output.device)
        self.target: dict[str, Tensor] = {}

    @classmethod
    def from_actor(
        cls,
        config: ActorConfig,
        *,
        method: str,
        gamma: float,
        num_q_heads: int,
        head_size: int | None = None,
        start: float = 0.0,
    ) -> Self:
        """A new value model whose trunk begins as the actor's, to be trained.

        Args:
            head_size: width of the heads' hidden layer; None: twice that of the trunk.
            start: first value of all heads.

        Raises:
            DataError, ConfigError: as `load_actor`.
        """
        trunk, tokenizer = load_actor(config, trainable=True)
        output = trunk.get_output_embeddings()
        if output.weight is not trunk.get_input_embeddings().weight:
            output.requires_grad_(False)
        head_size = head_size or 2 * output.weight.shape[1]
        meaning = ValueMeaning(method, gamma, config.strategy, num_q_heads, head_size)
        return cls(trunk, tokenizer, meaning, start)

    @classmethod
    def load(cls, directory: str | Path, config: PlayerConfig | None = None) -> Self:
        """The value model that `save` wrote, frozen, at the precision it was trained at.

        Args:
            config: of the actor beside it, whose dtype is taken, if it is not `auto` and neither
                is quantised.

        Raises:
            DataError: files are missing, damaged, or do not belong together.
        """
        directory, config = Path(directory), config or PlayerConfig()
        verify_manifest_if_any(directory)
        base, precision, meaning = cls.read_meaning(directory)
        adapter = {"model": base, "adapter": str(directory)}
        where = adapter if is_adapted(directory) else {"model": str(directory)}
        dtype = "auto" if config.bits is not None else config.dtype
        base = PlayerConfig(**where, dtype=dtype)
        model = cls(*load_actor(at_stored_precision(base, precision)), meaning)
        model._load_values(directory)
        return model.requires_grad_(False).eval()

    @classmethod
    def read_meaning(cls, directory: Path) -> tuple[str, dict[str, Any], ValueMeaning]:
        """The base of the values in a folder, its precision, and what their numbers mean.

        Raises:
            DataError: it is no folder of values, or damaged.
        """
        names = [item.name for item in fields(ValueMeaning)]
        file, needed = directory / cls.config_file, ["base", "precision", *names]
        mend = "expected a folder that train_ilql or train_mc saved"
        stored = read_versioned_json(file, cls.schema_version, needed, mend)
        meaning = ValueMeaning(**{name: stored[name] for name in names})
        return stored["base"], stored["precision"], meaning

    def start_target(self) -> None:
        """Begins a target network: a copy of what is trained in trunk and Q heads.

        It moves by less than the distance between two numbers of 16 bits, and is kept in float32.
        """
        # By identity: the decoder's names in the trunk differ with the adapter around it.
        parts = self.base.get_decoder(), self.q_heads
        copied = {id(p) for part in parts for p in part.parameters()}
        self.target = {
            name: p.detach().to(torch.float32, copy=True)
            for name, p in self.named_parameters()
            if p.requires_grad and id(p) in copied
        }

    @torch.no_grad()
    def update_target(self, tau: float) -> None:
        """Moves the target network by τ towards the trained parameters, θ̂ ← τ θ + (1 − τ) θ̂.

        Source: Polyak & Juditsky 1992; Lillicrap et al. 2016, "Continuous control with deep
        reinforcement learning", algorithm 1.
        """
        online = dict(self.named_parameters())
        trained = [online[name].float() for name in self.target]
        torch._foreach_lerp_(list(self.target.values()), trained, tau)

    def target_network(self) -> Self:
        """A model of the target network's values, to act with; shares all that is not trained."""
        shared = [p for name, p in self.named_parameters() if name not in self.target]
        network = copy.deepcopy(self, {id(part): part for part in [*shared, self.tokenizer]})
        network.load_state_dict(self.target, strict=False)
        network.target = {}
        return network

    def least_q(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        """Values min_i Q_i(s, ·) (B, V) of hidden states (B, D), or of some tokens alone."""
        return torch.stack([head(hidden, columns) for head in self.q_heads]).amin(dim=0)

    def hidden_states(
        self, input_ids: Tensor, position_ids: Tensor, subtree_ends: Tensor
    ) -> Tensor:
        """The trunk's last hidden states (R · L, D) of the tokens of trees (R, L)."""
        mask = additive_mask(seen_in_tree(subtree_ends), self.trunk.dtype)
        options = {"position_ids": position_ids, "attention_mask": mask, "use_cache": False}
        states = self.base.get_decoder()(input_ids=input_ids, **options).last_hidden_state
        return states.flatten(0, 1)

    def forward(
        self, trees: dict[str, Tensor], state_nodes: Tensor | None, next_nodes: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Values at U nodes where the agent speaks next, and V alone at W nodes that follow.

        Args:
            trees: `input_ids`, `position_ids` and `subtree_ends` (R, L) of `PrefixTrees`.
            state_nodes, next_nodes: (U,) and (W,) places in the flattened rows.

        Returns:
            `q` (num_q_heads, U, V), `v` (U,), and `v_next` (W,) without gradient.
        """
        hidden = self.hidden_states(**trees)
        values = {}
        if state_nodes is not None:
            states = hidden[state_nodes]
            values["q"] = torch.stack([head(states) for head in self.q_heads])
            values["v"] = self.v_head(states).squeeze(-1)
        if next_nodes is not None:
            with torch.no_grad():
                values["v_next"] = self.v_head(hidden[next_nodes]).squeeze(-1)
        return values

    @torch.no_grad()
    def state_values(self, trees: dict[str, Tensor], nodes: Tensor) -> Tensor:
        """V at W nodes (W,), without dropout."""
        with evaluating(self):
            return self(trees, None, nodes)["v_next"]

    @torch.no_grad()
    def target_q(self, trees: dict[str, Tensor], state_nodes: Tensor) -> Tensor:
        """Least value min_i Q̂_i (U, V) of the target network, without dropout."""
        online = dict(self.named_parameters())
        slow = {name: tensor.to(online[name].dtype) for name, tensor in self.target.items()}
        with evaluating(self):
            return functional_call(self, slow, (trees, state_nodes))["q"].amin(dim=0)

    @torch.no_grad()
    def token_values(self, trees: dict[str, Tensor], state_nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Least Q(s, ·) (U, V), by the target network where there is one, and V(s) (U,).

        Both without dropout.
        """
        with evaluating(self):
            values = self(trees, state_nodes)
        q = self.target_q(trees, state_nodes) if self.target else values["q"].amin(dim=0)
        return q, values["v"]

    def _beside_trunk(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._heads(state) | {f"target.{name}": t for name, t in self.target.items()}

    def _meaning(self) -> dict[str, Any]:
        base = str(base_folder(self.trunk))
        return {"base": base, "precision": self.precision, **asdict(self.meaning)}

    def load_weights(self, directory: str | Path) -> None:
        """Reads what `save` wrote into this model, to go on training where it stood."""
        super().load_weights(directory)
        self._load_values(Path(directory))

    @staticmethod
    def _heads(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: t for n, t in state.items() if n.startswith(("q_heads.", "v_head."))}

    def _load_values(self, directory: Path) -> None:
        file = directory / self.heads_file
        stored = read_tensors(file, str(self.device))
        for name, tensor in self._heads(self.state_dict()).items():
            if name not in stored or stored[name].shape != tensor.shape:
                raise DataError(f"{file}: {name} is missing or of another shape")
            put(tensor, stored[name])
        self.target = {
            name.removeprefix("target."): tensor.float()
            for name, tensor in stored.items()
            if name.startswith("target.")
        }
