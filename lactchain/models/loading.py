"""Base models and tokenizers from a folder or hub id, checked before they are used."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lactchain.config.settings import ActorConfig, CriticConfig, ModelConfig, PlayerConfig
from lactchain.errors import ConfigError, DataError, LactChainError
from lactchain.models.adapters import attach_lora, is_quantised, keep_differentiable, load_adapter
from lactchain.models.attention import context_length
from lactchain.models.headed import value_encoder_class
from lactchain.models.prompting import end_of_completion
from lactchain.models.runtime import (
    computes_in_bfloat16,
    device,
    held,
    is_out_of_memory,
    quiet,
    share,
)
from lactchain.models.weights import check_weights, mend, read_model_json, resolve_weights
from lactchain.storage.manifests import verify_listed, verify_manifest_if_any

log = logging.getLogger(__name__)

MOST_LAYERS = 1_000
"""Of any model; one that claims more would be built without end."""

SMALL_MODEL_BYTES = 1 << 30
"""Below this a progress bar would only flicker, and hashing all bytes takes a second at most."""


def load_actor(
    config: PlayerConfig, *, trainable: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The causal language model of `config` on this process's device, with its tokenizer.

    Args:
        trainable: keep gradients: of the adapter given, of a new one by `config.lora`, or of all
            weights when there is neither. Otherwise the model comes frozen, in eval mode.

    Raises:
        DataError: weights, tokenizer or adapter are missing, damaged, or do not belong together.
        ConfigError: they cannot be loaded so, or not be trained.
    """
    tokenizer, path = load_own_tokenizer(config), resolve_weights(config.model)
    lora = config.lora if isinstance(config, ActorConfig) else None
    all_trained = trainable and config.adapter is None and lora is None
    trained = {"all_trained": all_trained, "shared": not trainable}
    model = load_base(AutoModelForCausalLM, path, config, **trained)
    model.config.pad_token_id = tokenizer.pad_token_id
    if config.adapter is not None:
        model = load_adapter(model, config.adapter, trainable=trainable)
    elif trainable and lora is not None:
        model = attach_lora(model, lora, "CAUSAL_LM")
    elif not trainable:
        model.requires_grad_(False)
    return model.train(trainable), tokenizer


def load_encoder(
    config: CriticConfig, *, new_head: bool = True, all_trained: bool = False, shared: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The embedding model of `config` with a head of one value in float32, and its tokenizer.

    A `new_head` starts at zero. Otherwise the folder must hold a trained one.
    """
    path, shape, tokenizer = check_encoder(config)
    how = {"new_head": new_head, "all_trained": all_trained, "num_labels": 1}
    how["shared"] = shared and not config.frozen  # else its head comes from a trainer
    model = load_base(value_encoder_class(shape), path, config, **how)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.score.float()  # transformers loads so only what the files have (5.23)
    if new_head:
        torch.nn.init.zeros_(model.score.weight)
    return model, tokenizer


def check_encoder(config: CriticConfig) -> tuple[Path, PretrainedConfig, PreTrainedTokenizerBase]:
    """Folder, shape and tokenizer of an embedding model, looked at before its weights are loaded.

    `ConfigError` if a critic cannot be made of this model, or not with texts of this length.
    """
    path = resolve_weights(config.model)
    tokenizer = load_tokenizer(path, padding_side="right")
    tokenizer.truncation_side = "left"
    _end_in_eos_if_declared(tokenizer, path)
    shape = load_shape(path)
    if shape.is_encoder_decoder:
        raise ConfigError(
            f"critic.model: expected an encoder or a decoder, got {path}, a {shape.model_type}, "
            "which is both; take one such as Salesforce/SFR-Embedding-Mistral or a BERT"
        )
    fewest = tokenizer.num_special_tokens_to_add() + 1
    positions = shape.to_dict().get("max_position_embeddings", math.inf)
    most = min(positions, tokenizer.model_max_length)
    if not fewest <= config.max_length <= most:
        raise ConfigError(
            f"critic.max_length: expected {fewest} to {most} tokens, which {path} can read, got "
            f"{config.max_length}"
        )
    return path, shape, tokenizer


def load_base(
    auto_class: type,
    path: Path,
    config: ModelConfig,
    *,
    new_head: bool = False,
    all_trained: bool = False,
    shared: bool = False,
    **kwargs: Any,
) -> PreTrainedModel:
    """A model from the folder `path`, every weight accounted for but those of a new head.

    None that is `shared` will be trained, so that it may have its weights together with others.
    """
    key = "critic" if isinstance(config, CriticConfig) else "actor"
    stored = check_weights(path)
    files = sorted(set(stored.values()))
    num_bytes = sum(file.stat().st_size for file in files)
    if num_bytes < SMALL_MODEL_BYTES:
        verify_manifest_if_any(path)
    dtype = resolve_dtype(config, load_shape(path), all_trained=all_trained)
    if all_trained and config.bits:
        raise ConfigError(
            f"{key}.lora: expected an adapter to train on {path} in {config.bits} bits, whose "
            "weights cannot be trained themselves, got null; set lora, or another dtype than "
            f"{config.bits}bit"
        )
    if all_trained and config.dtype == "bfloat16":
        line = "%s: all weights are trained in bfloat16, which rounds most of their updates away; "
        log.warning(line + "leave dtype at auto, or train an adapter", path)
    known = held(files, dtype) if shared and config.bits is None else {}
    with readable(path), quiet(progress=num_bytes > SMALL_MODEL_BYTES):
        model, info = auto_class.from_pretrained(
            path,
            dtype=dtype,
            # What will be given up for what is there already is only mapped, and fills no device.
            device_map={"": "cpu" if known else device()},
            quantization_config=_quantization(config, key, dtype),
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **kwargs,
        )
    if config.bits == 4 and device().type == "cpu":
        keep_differentiable(model)
    others = stored.keys() - model.state_dict().keys() if all_trained else ()
    if any(".experts." in name for name in others):  # which one could not go on from
        raise ConfigError(
            f"{key}.lora: expected an adapter to train on {path}, a {model.config.model_type}, "
            "whose experts are stored otherwise than they are trained, got null; set lora"
        )
    heads = {"score.weight"} if new_head else set()
    wrong = sorted({str(k) for k in (info["missing_keys"] - heads) | info["mismatched_keys"]})
    if wrong and key == "actor" and (path / "critic_config.json").is_file():
        raise DataError(f"{path}: expected a language model, got a critic; give its run's actor")
    if wrong:
        raise DataError(
            f"{path}: expected weights of every layer, {len(wrong)} are missing or of another "
            f"shape ({wrong[0]}, ...); {mend(path)}"
        )
    left_out = sorted(map(str, info["unexpected_keys"]))
    if left_out and key == "actor":  # an encoder of a larger model has some
        line = "%s: its config.json has no place for %d of its weights (%s, ...): left out"
        log.warning(line, path, len(left_out), left_out[0])
    return share(model, known) if shared and not is_quantised(model) else model


@contextmanager
def readable(
    path: str | Path, how: str | None = None, what: str = "transformers cannot read this model"
) -> Iterator[None]:
    """What a library makes nothing of is a `DataError`, in whichever way it says so.

    The line ends with `how` to mend it, else with how one comes by the model. A library that is not
    installed is a `ConfigError`. What a device, a signal or another process did wrong passes.
    """
    try:
        yield
    except (LactChainError, torch.AcceleratorError, torch.distributed.DistError):
        raise
    except ImportError as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"{path}: needs a package that is not installed ({reason})") from error
    except BaseException as error:  # noqa: BLE001  - tokenizers raise nothing narrower
        kind = type(error).__name__
        if is_out_of_memory(error) or not (
            isinstance(error, Exception) or kind == "PanicException"  # of Rust
        ):
            raise
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, UnpicklingError):  # torch would tell how to run it all the same
            reason = "it is cut, or holds more than tensors and plain values"
        raise DataError(f"{path}: {what} ({kind}: {reason}); {how or mend(path)}") from error


def load_tokenizer(path: Path, *, padding_side: str, chat: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder, with a padding token.

    With `chat`, the end of a sequence is that by which the chat template ends completions.
    """
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        read_model_json(path / name)
    verify_listed(path / "tokenizer.json")  # before anything of it is believed
    with readable(path):
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        for text in ("x", " x\n", "é漢🙂"):  # some come to grief at their first text
            tokenizer.decode(tokenizer(text)["input_ids"])
    tokenizer.padding_side = padding_side
    if chat:
        tokenizer.eos_token = end_of_completion(tokenizer)
    if tokenizer.pad_token is None:
        # Mistral-7B ships without one. A token that is never produced serves best; the end of
        # sequence will do, since padding is told by the attention mask everywhere here.
        tokenizer.pad_token = tokenizer.unk_token or tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise DataError(
            f"{path}: expected a tokenizer with a pad token, or an unk or eos token to pad with, "
            "got none; add a pad_token to its tokenizer_config.json"
        )
    size = load_shape(path).get_text_config().vocab_size
    for name in ("bos_token", "eos_token", "pad_token"):
        # A token that the vocabulary does not have is given a number behind it, without a word.
        if (getattr(tokenizer, f"{name}_id") or 0) >= size:
            raise DataError(
                f"{path}: {name} {getattr(tokenizer, name)!r} in tokenizer_config.json is none of "
                f"the model's {size} tokens; name one that is"
            )
    return tokenizer


def load_own_tokenizer(config: PlayerConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of an actor, without its weights; errors as of `load_actor`."""
    return load_tokenizer(resolve_weights(config.model), padding_side="left", chat=True)


def context_of(config: PlayerConfig) -> int | None:
    """Tokens that an actor reads at most (`context_length`), before its weights are loaded."""
    return context_length(load_shape(resolve_weights(config.model)))


def resolve_dtype(
    config: ModelConfig, shape: PretrainedConfig, *, all_trained: bool = False
) -> torch.dtype:
    """The type that weights are loaded in, on the device at hand.

    `auto` is bfloat16 where the device multiplies in it, but not for weights that are all trained,
    nor for those that say float32, as such a training stores them. Quantised weights are computed
    with in bfloat16.
    """
    if config.dtype != "auto":
        return torch.float32 if config.dtype == "float32" else torch.bfloat16
    exact = all_trained or shape.dtype == torch.float32
    return torch.float32 if exact or not computes_in_bfloat16() else torch.bfloat16


def load_shape(path: Path) -> PretrainedConfig:
    """The config.json of a model's folder; `DataError` if damaged, or of a model with own code."""
    stored = read_model_json(path / "config.json")
    model_type = stored.get("model_type")
    for name, value in stored.items():
        if "layers" in name and isinstance(value, int) and not 0 <= value <= MOST_LAYERS:
            raise DataError(
                f"{path / 'config.json'}: {name}: expected 0 to {MOST_LAYERS:,}, got {value:,}; "
                f"{mend(path)}"
            )
    if model_type not in CONFIG_MAPPING:
        raise DataError(
            f"{path / 'config.json'}: expected a model_type that transformers knows, got "
            f"{model_type!r}; take another model, since code that comes with one is not run"
        )
    with readable(path):
        return AutoConfig.from_pretrained(path, local_files_only=True)


def _end_in_eos_if_declared(tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Lets every text end in the end of sequence where tokenizer_config.json says so.

    Embedding models such as SFR-Embedding-Mistral pool that token. transformers 5 does not read
    `add_eos_token` where there is a tokenizer.json.
    """
    added = tokenizer("")["input_ids"]
    declared = read_model_json(path / "tokenizer_config.json").get("add_eos_token")
    if declared and added[-1:] != [tokenizer.eos_token_id]:
        # Setting either writes the post-processor anew; a critic is saved with it.
        tokenizer.add_bos_token = added[:1] == [tokenizer.bos_token_id]
        tokenizer.add_eos_token = True


def _quantization(config: ModelConfig, key: str, dtype: torch.dtype) -> BitsAndBytesConfig | None:
    if config.bits is None:
        return None
    if find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"{key}.dtype: 4bit and 8bit need bitsandbytes: pip install 'lactchain[quantization]'"
        )
    return BitsAndBytesConfig(
        load_in_4bit=config.bits == 4,
        load_in_8bit=config.bits == 8,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        # The head of a critic is new and trained as it is.
        llm_int8_skip_modules=["lm_head", "score"],
    )
