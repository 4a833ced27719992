"""The requests of real engines, field by field, as their sources of 2026-11 have them.

vLLM 0.33.0, `vllm/entrypoints/openai/completion/protocol.py` and `entrypoints/serve/lora`; SGLang
0.5.23, `sglang/api/v1/api_types.py` and `sglang/srt/sampling/sampling_params.py`. vLLM drops a
field that it does not know without a word, and SGLang does outside of `sampling_params`; a stand-in
refuses it, since nobody would see that it does nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

Known = Mapping[str, Callable[[Any], bool]]


def whole(value: Any) -> bool:
    """A JSON integer of 64 bits with sign."""
    return type(value) is int and -(2**63) <= value < 2**63


def number(value: Any) -> bool:
    return type(value) in (int, float)


def text(value: Any) -> bool:
    return isinstance(value, str)


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def tokens(value: Any) -> bool:
    return isinstance(value, list) and all(whole(token) and token >= 0 for token in value)


SHARE: Known = {"top_p": lambda v: 0 < v <= 1, "min_p": lambda v: 0 <= v <= 1}
PENALTIES: Known = {
    "repetition_penalty": lambda v: 0 < v <= 2,
    "presence_penalty": lambda v: -2 <= v <= 2,
    "frequency_penalty": lambda v: -2 <= v <= 2,
}
VLLM: Known = {
    "model": text,
    "prompt": lambda value: tokens(value) or text(value),
    "max_tokens": whole,
    "temperature": number,
    "seed": whole,
    "top_k": lambda value: whole(value) and value >= -1,
    "stop_token_ids": tokens,
    "ignore_eos": flag,
    "logprobs": lambda value: whole(value) and value >= -1,
    "return_token_ids": flag,
    "skip_special_tokens": flag,
    "structured_outputs": lambda value: not amiss(value, {"regex": text}),
    **SHARE,
    **PENALTIES,
}
VLLM_LOAD: Known = {"lora_name": text, "lora_path": text, "load_inplace": flag}
VLLM_UNLOAD: Known = {"lora_name": text}
VLLM_TOKENIZE: Known = {"model": text, "prompt": text, "add_special_tokens": flag}

SGLANG_SAMPLING: Known = {
    "max_new_tokens": whole,
    "temperature": lambda value: number(value) and value >= 0,
    "sampling_seed": whole,
    "top_k": lambda value: whole(value) and (value == -1 or value >= 1),
    "stop_token_ids": tokens,
    "ignore_eos": flag,
    "skip_special_tokens": flag,
    "regex": text,
    **SHARE,
    **PENALTIES,
}
SGLANG: Known = {
    "input_ids": tokens,
    "sampling_params": lambda value: not amiss(value, SGLANG_SAMPLING),
    "return_logprob": flag,
    "return_prompt_token_ids": flag,
    "lora_path": text,
}
SGLANG_LOAD: Known = {"lora_name": text, "lora_path": text, "pinned": flag}

VLLM_DEFAULTS = {"top_p", "top_k", "min_p", "temperature", *PENALTIES}
"""What vLLM takes from `generation_config.json` where a request does not say it."""


def amiss(asked: Any, known: Known) -> str:
    """What is wrong with a request, if anything."""
    if not isinstance(asked, dict):
        return "expected an object"
    if unknown := asked.keys() - known.keys():
        return f"unknown field {min(unknown)}"
    wrong = (f"{name}: {value!r}" for name, value in asked.items() if not known[name](value))
    return next(wrong, "")
