"""LoRA adapters by PEFT, with the checks that PEFT leaves out.

PEFT only warns when keys do not fit, and says nothing of another base. Both are errors here: beside
each adapter stands a `lactchain_adapter.json` that says which base and tokenizer it belongs to.
"""

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from peft import (
    LoraConfig,
    PeftConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    prepare_model_for_kbit_training,
)
from peft.helpers import disable_input_dtype_casting, rescale_adapter_scale
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from peft.utils.warning import PeftWarning
from transformers import PreTrainedModel

from lactchain.config.settings import LoraSettings
from lactchain.errors import ConfigError, DataError
from lactchain.models import weights
from lactchain.models.runtime import evaluating, own_parameters, put
from lactchain.models.weights import ADAPTER_FILES, ADAPTER_RECORD
from lactchain.storage.files import read_json, sha256, take_sample
from lactchain.storage.manifests import seen_from

log = logging.getLogger(__name__)

OF_OTHER_KINDS = ("layer_replication", "alora_invocation_tokens", "arrow_config")
"""Settings of adapters whose host is not the base as it is."""

AMPLIFICATION = 1000.0
"""Factor on an adapter when it is asked whether it does anything at all."""


def attach_lora(
    model: PreTrainedModel, lora: LoraSettings, task: Literal["CAUSAL_LM", "SEQ_CLS"]
) -> PeftModel:
    """A new adapter on `model`, to be trained; it changes nothing yet.

    The head of a classifier is trained whole and saved with it. Draws from torch's global random
    state: seed before.
    """
    settings = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, target_modules=lora.target_modules, task_type=task
    )
    return _host(model, settings, "lora.target_modules")


def save_adapter(
    model: PeftModel, directory: str | Path, state: dict[str, torch.Tensor] | None = None
) -> None:
    """Writes the adapter and its record; of a sharded model with the whole `state` of weights."""
    # "auto" would ask the hub whether the vocabulary was resized.
    model.save_pretrained(directory, save_embedding_layers=False, state_dict=state)
    write_adapter_record(directory, base_folder(model))


def write_adapter_record(directory: str | Path, base: str | Path) -> None:
    """Writes beside an adapter what it belongs to, and the hashes of its files."""
    directory, base = Path(directory), Path(base)
    hashes = {name: sha256(directory / name) for name in ADAPTER_FILES}
    values = str(base), base_checksum(base), tokenizer_checksum(base), hashes
    stored = {"schema_version": 1} | dict(zip(weights.RECORDED, values, strict=True))
    stored[weights.SEEN_FROM_HERE] = seen_from(directory, base)
    (directory / ADAPTER_RECORD).write_text(json.dumps(stored, indent=1) + "\n", "utf-8")


def load_adapter(
    model: PreTrainedModel, directory: str | Path, *, trainable: bool = False
) -> PeftModel:
    """`model` with the adapter in `directory`, after checking that they belong together.

    Unless it is to be trained on, the whole model is frozen, and an adapter that was never trained
    is refused, since it changes nothing. `DataError` if files are missing or damaged, another base
    or tokenizer, keys or shapes that do not fit, or no effect on the outputs.
    """
    directory = Path(directory)
    check_adapter(directory, base_folder(model))
    try:
        settings = LoraConfig.from_pretrained(directory)
    except Exception as error:  # noqa: BLE001  - PEFT's own errors are of every kind (0.21)
        raise DataError(f"{directory}: no settings of an adapter ({error})") from error
    settings.base_model_name_or_path = model.name_or_path  # the same base, it may have moved
    settings.inference_mode = not trainable
    peft_model = _host(model, settings, str(directory))
    load_adapter_weights(peft_model, directory)
    trained = any(p.any() for name, p in peft_model.named_parameters() if "lora_B" in name)
    if not trained and not trainable:
        raise DataError(f"{directory}: this adapter was never trained, it changes nothing")
    if trained and adapter_effect(peft_model) == 0.0:
        raise DataError(f"{directory}: this adapter does not change the outputs of its base")
    if not trainable:
        peft_model.requires_grad_(False)  # PEFT leaves the heads trainable
    return peft_model.train(trainable)


def load_adapter_weights(model: PeftModel, directory: str | Path) -> None:
    """Reads an adapter's weights into the adapter that `model` has; keys and shapes must agree."""
    file = Path(directory) / "adapter_model.safetensors"
    stored = weights.read_tensors(file)
    with warnings.catch_warnings():  # PEFT takes a bias for a shard (0.21); shapes are asked below
        warnings.filterwarnings("ignore", ".*LoRA tensor.* have invalid shape", PeftWarning)
        own = get_peft_model_state_dict(model, save_embedding_layers=False)
    expected = {key: tuple(w.shape) for key, w in own.items()}
    got = {key: tuple(w.shape) for key, w in stored.items()}
    wrong = sorted(key for key in expected.keys() | got.keys() if expected.get(key) != got.get(key))
    if wrong:
        key = wrong[0]
        raise DataError(
            f"{file}: does not fit this model in {len(wrong)} of {len(expected)} weights, such as "
            f"{key}: expected {expected.get(key, 'none')}, got {got.get(key, 'none')}"
        )
    for key, tensor in own.items():
        weight = stored[key]
        if not (weight.is_floating_point() and weight.to(tensor.dtype).isfinite().all()):
            raise DataError(
                f"{file}: {key}: expected finite numbers, got others, or some too large for "
                f"{tensor.dtype}"
            )
        put(tensor, weight)


@torch.inference_mode()
def adapter_effect(model: PeftModel) -> float:
    """Largest change that the adapter, much amplified, makes to hidden states of a few tokens.

    As it is, what a short training has learnt is lost between two numbers of bfloat16. The head is
    left out: that of a critic is in float32 whatever the precision of the layers.
    """
    trunk = model.get_base_model().base_model
    ids = torch.arange(min(8, model.config.vocab_size), device=model.device)[None]
    mask = torch.ones_like(ids)
    with evaluating(model):
        with rescale_adapter_scale(model, AMPLIFICATION):
            adapted = trunk(input_ids=ids, attention_mask=mask).last_hidden_state
        with model.disable_adapter():
            plain = trunk(input_ids=ids, attention_mask=mask).last_hidden_state
    return float((adapted - plain).abs().max())


@contextmanager
def as_its_base(model: PreTrainedModel | PeftModel) -> Iterator[None]:
    """An adapter that is trained in float32 multiplies in bfloat16 where its base does.

    PEFT would take all that a layer reads to float32 and back: a quarter of a step's time.
    """
    if not isinstance(model, PeftModel) or model.dtype != torch.bfloat16:
        yield
        return
    with torch.autocast(model.device.type, torch.bfloat16), disable_input_dtype_casting(model):
        yield


def merged(model: PreTrainedModel | PeftModel) -> PreTrainedModel | PeftModel:
    """The model with its adapter multiplied in, in place, where that keeps what it has learnt.

    In 16 bits and less most of it would be rounded away: there it stays beside the weights. For
    models that nobody else holds: merging and unmerging would drift. Their base may be shared.
    """
    if not isinstance(model, PeftModel):
        return model
    base = model.get_base_model()
    has_bias = any(config.lora_bias for config in model.peft_config.values())  # PEFT cannot (0.21)
    if has_bias or base.dtype != torch.float32 or is_quantised(base):
        return model
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            own_parameters(layer.get_base_layer())  # PEFT writes into them
    return model.merge_and_unload()


def check_adapter(directory: Path, base: Path) -> None:
    """Raises `DataError` unless the adapter's files are whole and were trained on `base`."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such folder; expected a LoRA adapter")
    if (directory / "config.json").is_file():
        raise DataError(f"{directory}: holds a whole model, not an adapter; give it as `model`")
    for name in ADAPTER_FILES:
        if not (directory / name).is_file():
            raise DataError(f"{directory / name}: no such file; expected a LoRA adapter")
    file = directory / ADAPTER_FILES[0]
    settings = read_json(file)
    _check_settings(settings, file)
    if not (directory / ADAPTER_RECORD).is_file():
        log.warning(
            "%s: another program saved this adapter, for %s; it is taken to belong to %s",
            *(directory, settings.get("base_model_name_or_path"), base),
        )
        return
    record = weights.read_adapter_record(directory)
    for name in ADAPTER_FILES:
        if sha256(directory / name) != record["sha256"][name]:
            raise DataError(f"{directory / name}: damaged, its sha256 is not the recorded one")
    for what, expected, got in (
        ("base model", record["base_fingerprint"], base_checksum(base)),
        ("tokenizer", record["tokenizer_fingerprint"], tokenizer_checksum(base)),
    ):
        if expected != got:
            raise DataError(
                f"{directory}: was trained on another {what}: expected {record['base']} "
                f"({expected[:12]}), got {base} ({got[:12]})"
            )


def _check_settings(settings: Mapping[str, Any], file: Path) -> None:
    """What PEFT takes for true or for a number, whatever it is, and adapters of other kinds."""
    if settings.get("peft_type") != "LORA":
        raise DataError(f"{file}: expected a LORA adapter, got {settings.get('peft_type')}")
    for name, default in vars(LoraConfig()).items():
        value = settings.get(name, default)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise DataError(f"{file}: {name}: expected true or false, got {value!r}")
    for name in ("r", "lora_alpha"):
        value = settings.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise DataError(f"{file}: {name}: expected a number above 0, got {value!r}")
    if others := [name for name in OF_OTHER_KINDS if settings.get(name)]:
        raise DataError(
            f"{file}: {others[0]}: expected an adapter of each layer once and of all tokens; merge"
            " this one into its base by PEFT, and give the folder of that as the model"
        )


def base_folder(model: PreTrainedModel | PeftModel) -> Path:
    """The folder that the base of `model` was loaded from."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    folder = Path(base.name_or_path)
    if not base.name_or_path or not folder.is_dir():
        raise ValueError(
            f"expected a model that was loaded from a folder, got {base.name_or_path!r}; "
            "save it first"
        )
    return folder


def base_checksum(folder: str | Path) -> str:
    """Identity of a base model: sha256 over its architecture and a sample of its weight files.

    Files up to 17 MB are hashed whole; of larger ones the header and sixteen places.
    """
    folder = Path(folder)
    config = read_json(folder / "config.json")
    for volatile in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        config.pop(volatile, None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for file in sorted(folder.glob("model*.safetensors")):
        digest.update(f"{file.name} ".encode())
        take_sample(digest, file)
    return digest.hexdigest()


def tokenizer_checksum(folder: str | Path) -> str:
    """Identity of a tokenizer with its chat template, in whichever file that is.

    transformers reads them in this order, and saves the template anew in a file of its own.
    """
    folder = Path(folder)
    file, template = folder / "tokenizer.json", folder / "chat_template.jinja"
    settings, chat = folder / "tokenizer_config.json", None
    if template.is_file():
        chat = template.read_text("utf-8")
    elif settings.is_file():
        chat = read_json(settings).get("chat_template")
    if isinstance(chat, list):  # several by name, of which the others are not asked for here
        chat = next((each["template"] for each in chat if each["name"] == "default"), None)
    digest = hashlib.sha256(file.read_bytes() if file.is_file() else b"none")
    digest.update((chat or "none").encode())
    return digest.hexdigest()


def _host(model: PreTrainedModel, settings: PeftConfig, key: str) -> PeftModel:
    """The model with an adapter, of which errors name the key."""
    if is_quantised(model) and not settings.inference_mode:
        # Trainers switch gradient checkpointing on themselves.
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    with warnings.catch_warnings():
        # PEFT 0.21 asks by the name that transformers 5.23 calls old.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        warnings.filterwarnings("ignore", "`lora_bias=True` was passed", PeftWarning)  # see merged
        try:
            hosted = get_peft_model(model, settings)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  - PEFT's own errors are of every kind (0.21)
            raise ConfigError(f"{key}: {type(error).__name__}: {error}") from error
    _check_between_embeddings(hosted, key)
    for config in hosted.peft_config.values():
        # PEFT keeps names in sets, and saves them in an order that each process draws anew.
        for name, value in vars(config).items():
            if isinstance(value, set):
                setattr(config, name, sorted(value))
    return hosted


def _check_between_embeddings(model: PeftModel, key: str) -> None:
    """Refuses adapters of embeddings or output: perhaps one weight, and draws use that alone."""
    base = model.get_base_model()
    for ends in (base.get_input_embeddings(), base.get_output_embeddings()):
        if isinstance(ends, BaseTunerLayer | AuxiliaryTrainingWrapper):
            name = next(name for name, module in base.named_modules() if module is ends)
            raise ConfigError(
                f"{key}: expected an adapter of layers between the embeddings and the output, got "
                f"one of {name}; leave that out, or train all weights (lora: null)"
            )


def is_quantised(model: PreTrainedModel) -> bool:
    """Whether the weights are in 4 or 8 bits."""
    return "quantization_config" in model.config.to_dict()


def keep_differentiable(model: PreTrainedModel) -> None:
    """Lets 4-bit layers on a CPU have gradients, as everywhere else.

    On some, bitsandbytes 0.50 would rearrange the weights for good at the first pass without any.
    """
    from bitsandbytes.nn import Linear4bit

    for layer in model.modules():
        if isinstance(layer, Linear4bit):
            layer.support_avx512bf16_for_cpu = False
