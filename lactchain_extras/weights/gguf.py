"""GGUF files, llama.cpp's format, made into folders that all of LactChain reads.

transformers reads many of their architectures, and dequantises; what it loads so cannot be saved.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from lactchain.errors import ConfigError, DataError
from lactchain.models.loading import load_shape, load_tokenizer, readable
from lactchain.models.runtime import quiet

MEND = "take a GGUF of an architecture that it reads, or the safetensors of the model"
GPT2_CUTS = ("default", "gpt-2")
SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}
"""Tokens by their names here, with those in GGUF files."""

log = logging.getLogger(__name__)


def convert_gguf(file: Path, folder: Path) -> dict[str, Any]:
    """Writes the causal language model in a GGUF file as a folder, and says what is not kept.

    Returns:
        The `licence` that the file states, or None, and the `quantisation` of most weights.

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
        config = transformers.AutoConfig.from_pretrained(alone, **source)
        config.save_pretrained(folder)
        load_shape(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(alone, **source)
        model = _load(file, alone, source, config)
    for name, stated in SPECIAL.items():
        if (number := facts.get(f"tokenizer.ggml.{stated}_token_id")) is not None:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(number))
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    numbers = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in SPECIAL}
    model.generation_config = transformers.GenerationConfig(**numbers)
    model.config.update(numbers)
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    kind = max(sizes, key=sizes.__getitem__)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if kind != "F32":  # of 16 bits or fewer: `auto` may compute in bfloat16
            model.config.dtype = torch.bfloat16
            model.config.save_pretrained(folder)
    load_tokenizer(folder, padding_side="left", chat=tokenizer.chat_template is not None)
    for lost in _not_kept(facts, tensors, tokenizer):
        log.warning("%s: %s", file, lost)
    quantisation = kind if kind in ("F32", "F16", "BF16") else f"{kind}, dequantised"
    return {"licence": facts.get("general.license"), "quantisation": quantisation}


def _read(file: Path) -> tuple[dict[str, Any], list[Any]]:
    """What a GGUF file states, lists as None, and its tensors."""
    if find_spec("gguf") is None:
        needed = "GGUF files need the package gguf: pip install 'lactchain[gguf]'"
        raise ConfigError(f"{file}: {needed}")
    from gguf import GGUFReader

    if file.exists() and not file.is_file():
        raise DataError(f"{file}: expected a GGUF file, got a folder, a pipe or a device")
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise DataError(f"{file}: expected a GGUF file, got another; take the .gguf itself")
    try:
        reader = GGUFReader(file)
        fields = reader.fields.items()
        facts = {name: f.contents() if len(f.types) == 1 else None for name, f in fields}
    except (ValueError, LookupError, OverflowError, MemoryError) as error:
        problem = f"damaged or cut short, not all of a GGUF file ({' '.join(str(error).split())})"
        raise DataError(f"{file}: {problem}; copy it again") from error
    return facts, reader.tensors


def _load(file: Path, alone: str, source: dict[str, Any], config: Any) -> PreTrainedModel:
    """A new model of the file's weights in float32; what read them cannot be saved."""
    options = source | {"quantization_config": transformers.GgufConfig(dequantize=True)}
    options |= {"dtype": torch.float32, "output_loading_info": True}
    read, info = AutoModelForCausalLM.from_pretrained(alone, **options)
    if wrong := sorted(map(str, {*info["missing_keys"], *info["mismatched_keys"]})):
        lacking = f"{len(wrong)} are missing or of another shape ({wrong[0]}, ...)"
        raise DataError(f"{file}: expected weights of every layer, {lacking}; {MEND}")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    return model


def _not_kept(
    facts: dict[str, Any], tensors: list[Any], tokenizer: PreTrainedTokenizerBase
) -> Iterator[str]:
    """What the folder does not have of the file, in words."""
    pre, cut = facts.get("tokenizer.ggml.pre", "default"), tokenizer.backend_tokenizer.pre_tokenizer
    if pre not in GPT2_CUTS and isinstance(cut, tokenizers.pre_tokenizers.ByteLevel):
        yield (
            f"how it cuts a text into words before tokens (`{pre}`) is not known to transformers:"
            " GPT-2's way takes its place, so that a few texts become other tokens"
        )
    if tokenizer.chat_template is None:
        yield "it has no chat template; put a chat_template.jinja into the folder"
    turned = [name for name in facts if ".rope.scaling." in name and "gpt-oss" not in name]
    if turned := turned + [t.name for t in tensors if t.name.startswith("rope_")]:
        yield f"its scaling of positions is left out, so long texts differ ({', '.join(turned)})"
