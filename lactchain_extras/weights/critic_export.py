"""A trained critic as a model of others: a reward model, a value model, a sentence encoder.

The adapter is multiplied in, and the scale and offset of the values go into the head, so that what
is loaded gives returns. A classifier is read back and compared with the critic before it counts.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lactchain.config.settings import CriticConfig
from lactchain.errors import ConfigError, DataError
from lactchain.models.adapters import merged
from lactchain.models.critic import MEANING, EmbeddingCritic, form_of
from lactchain.models.runtime import quiet
from lactchain.storage.files import make_folder, write_json
from lactchain.storage.manifests import write_manifest

CriticForm = Literal["sequence_classifier", "token_classifier", "sentence_transformer"]
CLASSIFIERS = {
    "sequence_classifier": AutoModelForSequenceClassification,
    "token_classifier": AutoModelForTokenClassification,
}
TEXTS = ("You are at (0, 3), facing left.", "9", "The goal is far away: two up, and 1 to the right")
"""What a classifier and the critic are compared on, as one padded batch."""
EXPORTED = "lactchain_critic"
"""Name of what a classifier's config.json says of its values: the fields of `MEANING`."""
TOLERANCE = 1e-5
"""Of values in float32, in units of the largest one."""


def config_of(directory: str | Path) -> CriticConfig:
    """What a trained critic was made from, and what its values mean."""
    stored = EmbeddingCritic.read_meaning(Path(directory))
    meaning = {name: stored[name] for name in MEANING}
    return CriticConfig(stored["model"], dtype=stored["dtype"], **meaning)


def export_critic(directory: str | Path, folder: str | Path, form: CriticForm) -> dict[str, Any]:
    """Writes a trained critic in float32 as one model with its tokenizer; the manifest last.

    Args:
        directory: what `EmbeddingCritic.save` wrote.
        form: "sequence_classifier": one label a text, as TRL's reward models; its head has no bias,
            so that `value_offset` of its config.json is what a value is above the score; what the
            values mean stands there as `EXPORTED`.
            "token_classifier": one label a token, of which the last is the value, as verl's value
            models. "sentence_transformer": an embedding of one number, by a last dense layer.

    Returns:
        `form`, `dtype`, `num_parameters`, `value_offset` (0 where it is in a bias), and
        `instruction`: what has to stand before a text.

    Raises:
        ConfigError: no such classifier reads this critic's encoder or its pooling.
        DataError: weights or adapter are missing, damaged, or do not belong together.
    """
    config = replace(config_of(directory), dtype="float32", checkpoint=str(directory))
    critic = EmbeddingCritic.from_config(config)
    critic.trunk = merged(critic.trunk)
    if critic.adapted:
        raise ConfigError(f"{directory}: what was trained on a quantised base cannot be merged")
    of_chains = None if critic.mode == "value" else TEXTS
    critic.values(TEXTS, of_chains)  # which have to be numbers
    make_folder(folder := Path(folder))
    if form == "sentence_transformer":
        _write_sentence_transformer(critic, folder)
    else:
        _write_classifier(critic, folder, form)
    in_bias = form != "sequence_classifier"
    facts = {
        "form": form,
        "dtype": "float32",
        "num_parameters": sum(weight.numel() for weight in critic.trunk.parameters()),
        "value_offset": 0.0 if in_bias else critic.value_offset,
        "instruction": critic.settings.instruction,
    }
    write_manifest(folder, facts | {"critic": str(directory)})
    return facts


def _write_classifier(critic: EmbeddingCritic, folder: Path, form: CriticForm) -> None:
    if critic.settings.pooling != "last":
        pools = f"pools the {critic.settings.pooling} of its tokens"
        what = f"sentence_transformer for a critic that {pools}"
        raise ConfigError(f"critic_as: expected {what}, got {form}, which reads the last one")
    _separate_padding(critic.tokenizer)
    model = _classifier(critic, CLASSIFIERS[form])
    model.config.pad_token_id = critic.tokenizer.pad_token_id
    model.config.value_offset = 0.0 if form == "token_classifier" else critic.value_offset
    setattr(model.config, EXPORTED, {name: getattr(critic.settings, name) for name in MEANING})
    with quiet():
        model.save_pretrained(folder)
        critic.tokenizer.save_pretrained(folder)
        again = CLASSIFIERS[form].from_pretrained(folder).eval()
    _require_equal(critic, again, form)


def _separate_padding(tokenizer: PreTrainedTokenizerBase) -> None:
    """A classifier takes the last token that is not padding, so no text may end in that one."""
    if tokenizer.pad_token_id != tokenizer.eos_token_id:
        return
    if tokenizer.unk_token_id in (None, tokenizer.eos_token_id):
        what = "padding is not the end of a text, or with a token for what is unknown"
        mend = "give its tokenizer_config.json a pad_token of its own"
        raise ConfigError(f"critic: expected a tokenizer whose {what}; {mend}")
    tokenizer.pad_token = tokenizer.unk_token


def _classifier(critic: EmbeddingCritic, auto_class: Any) -> PreTrainedModel:
    """A classifier of one label with the weights of a critic, scale and offset in its head."""
    weights = dict(critic.trunk.state_dict())
    shape = type(critic.base.config).from_dict(critic.base.config.to_dict())
    shape.num_labels, shape.problem_type = 1, "regression"
    try:
        model = auto_class.from_config(shape, dtype=torch.float32)
    except ValueError as error:  # of a kind that transformers has no such classifier of
        raise ConfigError(f"critic_as: {error}") from error
    weights["score.weight"] = critic.value_scale * weights["score.weight"]
    if "score.bias" in model.state_dict():
        weights["score.bias"] = torch.tensor([critic.value_offset])
    own = model.state_dict()
    if own.keys() != weights.keys() or own["score.weight"].shape != weights["score.weight"].shape:
        other = f"{type(model).__name__} has other weights than a critic on a {shape.model_type}"
        raise ConfigError(f"critic_as: {other}; take sentence_transformer")
    model.load_state_dict(weights)
    return model


def _require_equal(critic: EmbeddingCritic, model: PreTrainedModel, form: CriticForm) -> None:
    batch = critic.collate(critic.tokenize(TEXTS))
    with torch.inference_mode():
        expected, got = critic(**batch), model(**batch).logits[..., 0]
    if form == "sequence_classifier":
        got = got + model.config.value_offset
    else:
        got = got[torch.arange(len(got)), batch["attention_mask"].sum(dim=1) - 1]
    largest = (expected - got).abs().max().item()
    if not largest <= TOLERANCE * max(1.0, expected.abs().max().item()):
        what = f"a classifier of the same values, got {largest:.2g} of difference"
        why = "its encoder pools in a way of its own; take sentence_transformer"
        raise DataError(f"critic: expected {what}: {why}")


def _write_sentence_transformer(critic: EmbeddingCritic, folder: Path) -> None:
    """The encoder, how it reads and pools, and the head as a dense layer from that to the value."""
    encoder = getattr(critic.trunk, critic.trunk.base_model_prefix)
    with quiet():
        encoder.save_pretrained(folder)
        critic.tokenizer.save_pretrained(folder)
    width, settings = critic.base.config.hidden_size, critic.settings
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    ways = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    written = {
        "modules.json": [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
            for n, (path, name) in enumerate(parts)
        ],
        "sentence_bert_config.json": {"max_seq_length": settings.max_length},
        "1_Pooling/config.json": {"word_embedding_dimension": width}
        | {name: way == settings.pooling for name, way in ways.items()},
        "2_Dense/config.json": {"in_features": width, "out_features": 1, "bias": True} | identity,
    }
    before, _, behind = form_of(settings).partition("{text}")
    if before and not behind:  # they know texts in front alone
        prompts = {"prompts": {"query": before}, "default_prompt_name": "query"}
        written["config_sentence_transformers.json"] = prompts
    for name, value in written.items():
        make_folder((folder / name).parent)
        write_json(folder / name, value)
    weight = critic.value_scale * critic.base.score.weight.detach()
    weights = {"linear.weight": weight, "linear.bias": torch.tensor([critic.value_offset])}
    save_file(weights, folder / "2_Dense/model.safetensors")
