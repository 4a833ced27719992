"""GGUF files, llama.cpp's format, made into folders that all of LactChain reads.

transformers reads many of their architectures, and dequantises; what it loads so cannot be saved,
nor trained. A folder has the weights in float32, the tokenizer and the chat template.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lactchain.errors import ConfigError, DataError
from lactchain.models.loading import load_shape, load_tokenizer, readable
from lactchain.models.runtime import quiet

UNQUANTISED = ("F32", "F16", "BF16")
GPT2_CUTS = ("default", "gpt-2")
SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}
"""Tokens by their names here, with those in GGUF files."""
MEND = "take a GGUF of an architecture that it reads, or the safetensors of the model"

log = logging.getLogger(__name__)


def convert_gguf(file: Path, folder: Path) -> dict[str, Any]:
    """Writes the causal language model in a GGUF file as a folder, and says what is not kept.

    Args:
        file: is there.

    Returns:
        Of the file: the `licence` that it states, or None; `quantisation`, the type of most
        weights.

    Raises:
        ConfigError: the package gguf is not installed.
        DataError: it is no GGUF file or not all of one, transformers does not read its
            architecture, or it has no tokenizer.
    """
    facts, tensors = _read(file)
    if "tokenizer.ggml.tokens" not in facts:
        raise DataError(f"{file}: expected a GGUF file with its tokenizer, got none; take another")
    with TemporaryDirectory() as alone, readable(file, MEND), quiet():
        (Path(alone) / "model.gguf").symlink_to(file.resolve())  # no file beside it counts
        source: dict[str, Any] = {"gguf_file": "model.gguf", "local_files_only": True}
        config = AutoConfig.from_pretrained(alone, **source)
        config.save_pretrained(folder)
        load_shape(folder)
        tokenizer = AutoTokenizer.from_pretrained(alone, **source)
        model = _load(alone, source, config, file)
    _name_special_tokens(tokenizer, facts)
    numbers = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in SPECIAL}
    model.generation_config = GenerationConfig(**numbers)
    model.config.update(numbers)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    load_tokenizer(folder, padding_side="left", chat=tokenizer.chat_template is not None)
    kind = _type_of_most(tensors)
    for lost in _not_kept(facts, tensors, tokenizer):
        log.warning("%s: not kept: %s", file, lost)
    quantisation = kind if kind in UNQUANTISED else f"{kind}, dequantised"
    return {"licence": facts.get("general.license"), "quantisation": quantisation}


def _read(file: Path) -> tuple[dict[str, Any], list[Any]]:
    """The facts that a GGUF file states, those in lists as None, and its tensors."""
    if find_spec("gguf") is None:
        raise ConfigError(f"{file}: GGUF files need the package gguf: pip install -e '.[gguf]'")
    from gguf import GGUFReader

    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise DataError(f"{file}: expected a GGUF file, got another; take the .gguf itself")
    try:
        reader = GGUFReader(file)
        fields = reader.fields.items()
        facts = {name: f.contents() if len(f.types) == 1 else None for name, f in fields}
    except (ValueError, LookupError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{file}: damaged or cut short, not all of a GGUF file ({reason}); copy it again"
        ) from error
    return facts, reader.tensors


def _load(
    alone: str, source: dict[str, Any], config: PretrainedConfig, file: Path
) -> PreTrainedModel:
    """The model, every weight accounted for: a new one, since what was a GGUF is not saved."""
    loaded, info = AutoModelForCausalLM.from_pretrained(
        alone,
        **source,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    if wrong := sorted(map(str, {*info["missing_keys"], *info["mismatched_keys"]})):
        raise DataError(
            f"{file}: expected weights of every layer, {len(wrong)} are missing or of another "
            f"shape ({wrong[0]}, ...); {MEND}"
        )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    return model


def _name_special_tokens(tokenizer: PreTrainedTokenizerBase, facts: Mapping[str, Any]) -> None:
    """As the file states them; padding by the end of sequence, unless it says otherwise."""
    for name, stated in SPECIAL.items():
        number = facts.get(f"tokenizer.ggml.{stated}_token_id")
        if number is not None:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(number))
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token


def _type_of_most(tensors: Iterable[Any]) -> str:
    """The type that most numbers of the file are stored in, such as Q4_1."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    return max(sizes, key=sizes.__getitem__)


def _not_kept(
    facts: Mapping[str, Any], tensors: Iterable[Any], tokenizer: PreTrainedTokenizerBase
) -> Iterator[str]:
    """What the folder does not have of the file, in words."""
    pre = facts.get("tokenizer.ggml.pre", "default")
    if pre not in GPT2_CUTS and isinstance(tokenizer.backend_tokenizer.pre_tokenizer, ByteLevel):
        yield f"the rule `{pre}` that cuts texts into words, in whose place is GPT-2's"
    if tokenizer.chat_template is None:
        yield "a chat template, there is none; put a chat_template.jinja into the folder"
    turned = sorted(name for name in facts if ".rope.scaling." in name and "gpt-oss" not in name)
    turned += sorted(tensor.name for tensor in tensors if tensor.name.startswith("rope_"))
    if turned:
        yield f"how long texts are read ({', '.join(turned)}), which changes what it computes"
