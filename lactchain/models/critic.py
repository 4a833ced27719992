"""The critic: an embedding model whose pooled token is read as a value in return units."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lactchain.config.bounds import AtLeast1, Bound, Bounded, PositiveShare
from lactchain.config.settings import CriticConfig
from lactchain.errors import ConfigError, DataError, NonFiniteError
from lactchain.functional.tokens import pool
from lactchain.models.adapters import attach_lora, load_adapter
from lactchain.models.headed import HeadedModel, at_stored_precision, is_adapted, stored_dtype
from lactchain.models.loading import check_encoder, load_encoder
from lactchain.models.prompting import encodable
from lactchain.models.runtime import evaluating, put
from lactchain.models.weights import mend, prompt_of, read_model_json, read_tensors, resolve_weights
from lactchain.storage.files import check_types, read_versioned_json
from lactchain.storage.manifests import verify_manifest_if_any

log = logging.getLogger(__name__)

MEANING = ("mode", "gamma", "discount_per", "pooling", "instruction", "max_length")
"""Fields of `CriticConfig` that say what the numbers mean; they are stored with the weights."""
HEAD = "score.weight"
"""Its name in the encoder."""

POOLINGS = {"mean": "mean", "mean_tokens": "mean", "lasttoken": "last"}
"""Our names of sentence-transformers' ways to pool."""


@dataclass(frozen=True)
class _Stored(Bounded):
    """What stands beside the weights: of `CriticConfig`, `precision` and `EmbeddingCritic`."""

    model: str
    mode: Literal["value", "action_value"]
    gamma: PositiveShare
    discount_per: Literal["action", "chain"]
    pooling: Literal["last", "mean"]
    instruction: str | None
    max_length: AtLeast1
    dtype: Literal["float32", "bfloat16", "float16"]
    load_in_4bit: bool
    load_in_8bit: bool
    value_scale: Annotated[float, Bound(above=0, at_most=1e300)]
    value_offset: Annotated[float, Bound(at_least=-1e300, at_most=1e300)]


class EmbeddingCritic(HeadedModel):
    """V(s), or Q(s, chain), by a linear head in float32 on the last real token of an encoder.

    A causal encoder's last token has seen the whole text (SFR-Embedding-Mistral pools the same
    way); others were trained to pool the mean, as most BERTs, and their folders say so
    (`resolve_pooling`). With actions the text read is the observation, a line break, and the chain.
    An instruction stands before it (`CriticConfig.instruction`).

    Attributes:
        trunk: the encoder with its head `score`.
        tokenizer: pads on the right.
        settings: what the values mean, how texts are pooled and which instruction they have.
        mode, gamma, discount_per: of the values, as in `lactchain.types.Critic`.
        value_scale, value_offset: the head's output times the one and plus the other is the value,
            so that a head that was made for numbers around 0 and 1 also serves returns of 100.
    """

    config_file = "critic_config.json"

    def __init__(
        self,
        trunk: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: CriticConfig,
        value_scale: float = 1.0,
        value_offset: float = 0.0,
    ) -> None:
        if not value_scale > 0:
            raise ValueError(f"value_scale: expected a positive number, got {value_scale}")
        super().__init__(trunk, tokenizer)
        self.settings = settings
        self.mode, self.gamma = settings.mode, settings.gamma
        self.discount_per = settings.discount_per
        self.value_scale, self.value_offset = value_scale, value_offset

    @classmethod
    def from_config(
        cls, config: CriticConfig, *, trainable: bool = False, value_scale: float = 1.0
    ) -> Self:
        """The critic of `config.checkpoint`, or a new one of a `value_scale`, whose values are 0.

        Args:
            trainable: keep gradients: of adapter and head, or of all weights without an adapter;
                of nothing where it is to stay frozen.

        Raises:
            ConfigError: the checkpoint's values mean something else than the configuration says;
                or as `resolve_pooling`.
            DataError: weights or adapter are missing, damaged, or do not belong together.
        """
        trainable = trainable and not config.frozen
        if config.checkpoint is not None:
            return cls._from_checkpoint(config, trainable)
        task = config.instruction or prompt_of(resolve_weights(config.model))
        config = replace(config, pooling=resolve_pooling(config), instruction=task)
        all_trained = trainable and config.lora is None
        model, tokenizer = load_encoder(config, all_trained=all_trained, shared=not trainable)
        if trainable and config.lora is not None:
            model = attach_lora(model, config.lora, "SEQ_CLS")
        elif not trainable:
            model.requires_grad_(False)
        return cls(model, tokenizer, config, value_scale).train(trainable)

    @classmethod
    def load(cls, directory: str | Path, *, trainable: bool = False) -> Self:
        """The critic that `save` wrote, on the base and at the precision it was trained on.

        `DataError` as `from_config`.
        """
        stored = cls.read_meaning(Path(directory))
        meaning = {name: stored[name] for name in MEANING}
        config = CriticConfig(model=stored["model"], checkpoint=str(directory), **meaning)
        return cls._from_checkpoint(config, trainable)

    @classmethod
    def read_meaning(cls, directory: Path) -> dict[str, Any]:
        """What `save` wrote about the values in a folder; `DataError` if it is none, or damaged."""
        file = directory / cls.config_file
        names = [field.name for field in fields(_Stored)]
        how = "expected a folder that a critic saved"
        stored = read_versioned_json(file, cls.schema_version, names, how)
        values = {name: stored[name] for name in names}
        try:
            check_types(_Stored, values)
            return vars(_Stored(**values))
        except (ValueError, OverflowError) as error:
            raise DataError(f"{file}: {error}; copy the critic whole, or train it anew") from error

    @classmethod
    def _from_checkpoint(cls, config: CriticConfig, trainable: bool) -> Self:
        directory = Path(config.checkpoint)
        verify_manifest_if_any(directory)
        stored = cls.read_meaning(directory)
        trained = stored | {"dtype": stored_dtype(stored)}
        config = replace(config, pooling=config.pooling or stored["pooling"])
        if config.instruction is None and stored["instruction"]:
            config = replace(config, instruction=prompt_of(resolve_weights(config.model)))
        for name in MEANING if config.bits is None else (*MEANING, "dtype"):
            if trained[name] != getattr(config, name):
                raise ConfigError(
                    f"critic.{name}: expected {trained[name]!r}, as {directory} was trained with, "
                    f"got {getattr(config, name)!r}"
                )
        adapted, whole = is_adapted(directory), (directory / "config.json").is_file()
        all_trained = trainable and not adapted
        if not all_trained:
            config = at_stored_precision(config, stored)
        base = replace(config, model=str(directory)) if whole else config
        how = {"all_trained": all_trained, "shared": not trainable}
        model, tokenizer = load_encoder(base, new_head=not whole, **how)
        if adapted:
            model = load_adapter(model, directory, trainable=trainable)
        elif not trainable:
            model.requires_grad_(False)
        units = stored["value_scale"], stored["value_offset"]
        if not (adapted or whole):  # a head of the base
            config = replace(config, checkpoint=None, frozen=not trainable)
            file = directory / cls.heads_file
            stored, own = read_tensors(file, str(model.device)), model.score.weight
            if HEAD not in stored or stored[HEAD].shape != own.shape:
                raise DataError(f"{file}: {HEAD} is missing or of another shape")
            put(own, stored[HEAD])
        return cls(model, tokenizer, config, *units).train(trainable)

    def _meaning(self) -> dict[str, Any]:
        stored = {name: getattr(self.settings, name) for name in ("model", *MEANING)}
        units = {"value_scale": self.value_scale, "value_offset": self.value_offset}
        return {**stored, **self.precision, **units}

    @property
    def _is_head_alone(self) -> bool:
        """Whether all but the head is the base, and need not be saved."""
        return self.settings.frozen and self.settings.checkpoint is None

    def _write_trunk(self, directory: Path, state: dict[str, torch.Tensor] | None) -> None:
        if not self._is_head_alone:
            super()._write_trunk(directory, state)

    def _beside_trunk(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {HEAD: state[f"trunk.{HEAD}"]} if self._is_head_alone and state else {}

    def load_weights(self, directory: str | Path) -> None:
        """Reads what `save` wrote into this critic, to go on training where it stood."""
        super().load_weights(directory)
        stored = self.read_meaning(Path(directory))
        self.value_scale, self.value_offset = stored["value_scale"], stored["value_offset"]

    def set_head(self, weight: torch.Tensor, offset: float) -> None:
        """Makes the value of features (B, D) their product with `weight` (D,), plus `offset`."""
        put(self.base.score.weight, weight[None] / self.value_scale)
        self.value_offset = offset

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, as_features: bool = False
    ) -> torch.Tensor:
        """Values (B,) in return units of B texts (B, L), padded on either side.

        Or `as_features` what the head reads, (B, D): sharded weights are gathered for a forward
        pass alone, so that it has to be one.
        """
        # The classifier's own forward pools by the pad token's id, which may be the id of the end
        # of sequence, and multiplies every token by the head.
        hidden = self.base.base_model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state
        pooled = pool(hidden, attention_mask, self.settings.pooling)
        if as_features:
            return pooled
        return self.value_offset + self.value_scale * self.base.score(pooled).squeeze(-1)

    def values(
        self,
        observations: Sequence[str],
        actions: Sequence[str] | None = None,
        batch_size: int = 256,
    ) -> np.ndarray:
        """V(s) of B observations (B,), or Q(s, chain) when `actions` are given.

        Equal texts are computed once, and texts of similar length together. `ValueError` if a
        critic of states is given actions, or one of chains is not; `NonFiniteError` if it computes
        NaN or infinities.
        """
        texts = self.texts(observations, actions)
        unique = list(dict.fromkeys(texts))
        rows = sorted(zip(self.tokenize(unique), unique, strict=True), key=lambda row: len(row[0]))
        values: dict[str, float] = {}
        with torch.inference_mode(), evaluating(self):
            for start in range(0, len(rows), batch_size):
                ids, read = zip(*rows[start : start + batch_size], strict=True)
                values |= zip(read, self(**self.collate(ids)).tolist(), strict=True)
        found = np.array([values[text] for text in texts], dtype=np.float32)
        if not np.isfinite(found).all():
            raise NonFiniteError("the critic computes NaN or infinities: its weights are damaged")
        return found

    def texts(self, observations: Sequence[str], actions: Sequence[str] | None = None) -> list[str]:
        """What the encoder reads: instruction, observation, and in that mode the chain behind."""
        if (self.settings.mode == "action_value") != (actions is not None):
            given = "none" if actions is None else "some"
            raise ValueError(f"actions: a critic of mode {self.settings.mode} was given {given}")
        read = list(observations)
        if actions is not None:
            read = [f"{o}\n{a}" for o, a in zip(observations, actions, strict=True)]
        return [form_of(self.settings).replace("{text}", text) for text in read]

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of B texts, at most `max_length` each; what is too long loses its beginning.

        The text of a special token is encoded as plain characters.
        """
        if not texts:
            return []
        texts, longest = [encodable(text) for text in texts], self.settings.max_length
        rows = self.tokenizer(
            texts, truncation=True, max_length=longest, split_special_tokens=True
        )["input_ids"]
        return [row or [self.tokenizer.eos_token_id] for row in rows]

    def collate(self, rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Pads B rows on the right: `input_ids` and `attention_mask` (B, L) on this device."""
        ids = {"input_ids": [list(row) for row in rows]}
        batch = self.tokenizer.pad(ids, padding_side="right", return_tensors="pt")
        return dict(batch.to(self.device))


def check_critic(config: CriticConfig) -> None:
    """Raises what is wrong with a new critic before hours are spent on its data."""
    if config.checkpoint is None:
        check_encoder(config)
        if config.pooling is None:
            resolve_pooling(config)


def resolve_pooling(config: CriticConfig) -> str:
    """The pooling that is set, else the folder's (sentence-transformers), else of the last token.

    `ConfigError` if nothing is set, and the folder pools in a way that is not known here.
    """
    file, stored = _pooling_of(resolve_weights(config.model))
    flags = [n for n, value in stored.items() if n.startswith("pooling_mode_") and value]
    named = [stored["pooling_mode"]] if "pooling_mode" in stored else flags
    ways = [str(name).removeprefix("pooling_mode_") for name in named]
    known = POOLINGS.get(ways[0]) if len(ways) == 1 else None
    if config.pooling is not None:
        if ways and known != config.pooling:
            log.warning(
                "critic.pooling: %s, though %s says %s", config.pooling, file, " and ".join(ways)
            )
        return config.pooling
    if ways and known is None:
        raise ConfigError(
            f"critic.pooling: expected an encoder that was trained to pool the last token or the "
            f"mean, got {' and '.join(ways)} in {file}; set it to last or mean"
        )
    return known or "last"


def _pooling_of(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file in which a folder of sentence-transformers says how it pools, and what it says."""
    listed = folder / "modules.json"
    if not listed.is_file():
        return listed, {}
    try:
        modules = json.loads(listed.read_bytes())
        parts = [(str(part["type"]).rpartition(".")[2], str(part["path"])) for part in modules]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{listed}: damaged ({error!r}); {mend(folder)}") from error
    if others := [kind for kind, _ in parts if kind not in ("Transformer", "Pooling", "Normalize")]:
        message = "%s: %s is left out: the pooled token is what is read"
        log.warning(message, listed, ", ".join(others))
    places = [folder / place / "config.json" for kind, place in parts if kind == "Pooling"]
    return (places[0], read_model_json(places[0])) if places else (listed, {})


def form_of(settings: CriticConfig) -> str:
    """What is read, with `{text}` in the place of the text itself."""
    task = settings.instruction or "{text}"
    return task if "{text}" in task else f"Instruct: {task}\nQuery: {{text}}"
