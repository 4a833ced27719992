"""Models and tokenizers of many families, at small width and with random weights.

Chat templates, in chat_templates/, are the published ones but for what tools, images and earlier
thoughts need.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from random_models import CHAT_TEMPLATE
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "chat_templates"

SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "max_position_embeddings": 1024,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
WINDOW, NO_WINDOW = {"sliding_window": 512}, {"sliding_window": None}
USED_WINDOW = {**WINDOW, "use_sliding_window": True}
SCALAR = {"query_pre_attn_scalar": 8}
EVERY_OTHER = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}


@dataclass(frozen=True)
class Family:
    """A family to measure.

    Attributes:
        name: what people call it.
        model_type: what transformers calls it.
        note: what is special about it.
        template: its chat template, in chat_templates/; None: measured with that of Qwen 2.
        specials: special tokens: beginning of a text, its end, and the others.
        sentencepiece: whether its tokenizer is of this kind.
        fields: of its configuration, beside `SHAPE`.
    """

    name: str
    model_type: str
    note: str = ""
    template: str | None = None
    specials: tuple[str, ...] = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")
    sentencepiece: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


LLAMA3 = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]")
GEMMA = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
GRANITE = ("<|end_of_text|>", "<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>")
COHERE = (
    "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>",
    "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
)  # fmt: skip
PHI = ("<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
OLMO = ("<|endoftext|>", "<|endoftext|>")
LONG = {
    "original_max_position_embeddings": 256,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    },
}  # fmt: skip

FAMILIES = (
    Family("Llama 3", "llama", "the day of the prompt is fixed", "llama3", LLAMA3),
    Family("SmolLM 2", "llama", "as Qwen 2", "qwen2", fields={"tie_word_embeddings": True}),
    Family("Mistral 7B v0.3", "mistral", "no window", "mistral", MISTRAL, True, NO_WINDOW),
    Family("Mistral 7B v0.1", "mistral", "window in every layer", "mistral", MISTRAL, True, WINDOW),
    Family("Mixtral", "mixtral", "experts", "mistral", MISTRAL, True, EXPERTS | NO_WINDOW),
    Family("Qwen 2, 2.5", "qwen2", "system text of its own where there is none", "qwen2"),
    Family("Qwen 2 with a window", "qwen2", "window in the upper layers", "qwen2",
           fields=USED_WINDOW | {"max_window_layers": 2}),
    Family("Qwen 3", "qwen3", "thinking switched off", "qwen3"),
    Family("Qwen 3 MoE", "qwen3_moe", "experts; thinking switched off", "qwen3",
           fields=EXPERTS | {"moe_intermediate_size": 16}),
    Family("Gemma", "gemma", "no system role", "gemma2", GEMMA, True),
    Family("Gemma 2", "gemma2", "window in every other layer, both softcaps; no system role",
           "gemma2", GEMMA, True,
           EVERY_OTHER | SCALAR | {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0}),
    Family("Gemma 3 (text)", "gemma3_text",
           "window in most layers; system text in the user's turn", "gemma3", GEMMA, True,
           EVERY_OTHER | SCALAR),
    Family("Phi 3, 3.5, 4", "phi3", "window in every layer", "phi3", PHI, True, WINDOW),
    Family("Phi 3 of 128k", "phi3", "reads its first 4k", "phi3", PHI, True, LONG),
    Family("SmolLM 3", "smollm3", "layers without positions; thinking switched off, fixed day",
           "smollm3", fields=USED_WINDOW),
    Family("Granite 3", "granite", "scaled logits; fixed day", "granite", GRANITE,
           fields={"logits_scaling": 4.0, "attention_multiplier": 0.5, "residual_multiplier": 0.5,
                   "embedding_multiplier": 2.0}),
    Family("OLMo 2", "olmo2", template="olmo2", specials=OLMO),
    Family("OLMo 3", "olmo3", "window in most layers", "olmo2", OLMO, fields=EVERY_OTHER),
    Family("Command R", "cohere", "scaled logits", "cohere", COHERE, fields={"logit_scale": 0.25}),
    Family("Command R7B", "cohere2", "scaled logits, window in most layers", "cohere", COHERE,
           fields=EVERY_OTHER | {"logit_scale": 0.25}),
    Family("StarCoder 2", "starcoder2", "window in every layer", fields=WINDOW),
    Family("Bloom", "bloom", "positions as a bias of the scores"),
    Family("Llama 4 (text)", "llama4_text", "chunks", fields=EXPERTS),
    Family("Qwen 3 Next", "qwen3_next", "linear attention", fields=EXPERTS),
    Family("gpt-oss", "gpt_oss", "attention sinks, windows of 128", fields=EVERY_OTHER | EXPERTS),
)  # fmt: skip


def build_model(family: Family, vocab_size: int) -> PreTrainedModel:
    """A model of the family whose weights are large enough to make choices differ."""
    config = AutoConfig.for_model(
        family.model_type, **SHAPE | {"vocab_size": vocab_size} | family.fields
    )
    generator = torch.Generator().manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5, generator=generator)
    model.generation_config.eos_token_id = None
    return model.eval().requires_grad_(False)


def build_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes or letters with the family's special tokens and chat template."""
    begin, end, *others = family.specials
    return PreTrainedTokenizerFast(
        tokenizer_object=_letters() if family.sentencepiece else _bytes(),
        bos_token=begin,
        eos_token=end,
        extra_special_tokens=others,
        chat_template=chat_template(family.template or "qwen2"),
        name_or_path=family.name,
    )


def chat_template(name: str) -> str:
    """The chat template of a family, as published but for what tools and images need."""
    return CHAT_TEMPLATE if name == "mistral" else (TEMPLATES / f"{name}.jinja").read_text("utf-8")


def _bytes() -> Tokenizer:
    """As GPT-2's: every byte is a letter."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _letters() -> Tokenizer:
    """As Gemma's and Mistral's: a space is written ▁, and letters that are unknown are bytes."""
    letters = [chr(i) for i in range(33, 127)]
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *letters]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer
