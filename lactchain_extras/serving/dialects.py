"""How engines are spoken to: what a request is written as, and what its answer is read as.

From vLLM 0.33's `entrypoints/openai/completion/protocol.py` and `entrypoints/serve/lora`, and
SGLang 0.5.23's `api/v1/api_types.py` and `managers/tokenizer_manager.py`. Everything that an engine
would else take from the model's `generation_config.json` is said, since the probabilities of a
truncated distribution are others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lactchain_extras.serving.transport import Unfinished

PLAIN = {
    "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip
"""The distribution of the model, and nothing else's."""


@dataclass(frozen=True)
class Request:
    """What is asked of an engine: one completion."""

    model: str  # the base, by the name that the servers have for it
    adapter: str | None  # on it, likewise
    prompt: str  # as text, without the token that a tokenizer itself puts before it
    prompt_ids: Sequence[int]  # as tokens, with it
    seed: int  # of the row's own randomness, below 2**63
    temperature: float  # 0 is greedy
    max_tokens: int
    end: int  # the token that ends a completion
    pattern: str | None  # of a constrained completion, a regular expression


@dataclass(frozen=True)
class Response:
    """What an engine answers: its text, why it ended, and tokens where it gives them."""

    text: str
    ended: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    prompt_ids: Sequence[int] = ()  # the tokens that it has read


@dataclass(frozen=True)
class Dialect:
    """The words of one kind of engine."""

    ask: str  # the path where completions are asked for
    write: Callable[[Request], dict[str, Any]]  # what is asked, as the body of an HTTP request
    read: Callable[[Mapping[str, Any]], Response]  # the body of its answer, all parts of it
    load: str = ""  # the paths that take adapters; empty: it has no tokens and constraints either
    unload: str = ""

    @property
    def has_tokens(self) -> bool:
        """Whether completions come with tokens, and can be constrained."""
        return bool(self.load)


def _write_vllm(row: Request) -> dict[str, Any]:
    constraint = {} if row.pattern is None else {"structured_outputs": {"regex": row.pattern}}
    return {
        **PLAIN, **constraint,
        "model": row.adapter or row.model, "prompt": row.prompt_ids, "max_tokens": row.max_tokens,
        "temperature": row.temperature, "seed": row.seed, "top_k": 0, "stop_token_ids": [row.end],
        "ignore_eos": True,  # other ends than this one, which `generation_config.json` may have
        "logprobs": 0, "return_token_ids": True, "skip_special_tokens": False,
    }  # fmt: skip


def _read_vllm(body: Mapping[str, Any]) -> Response:
    (choice,) = body["choices"]
    ids, prompt_ids = tuple(choice["token_ids"]), tuple(choice["prompt_token_ids"])
    logprobs = tuple(choice["logprobs"]["token_logprobs"])
    return Response(choice["text"], _ended(choice["finish_reason"]), ids, logprobs, prompt_ids)


def _write_sglang(row: Request) -> dict[str, Any]:
    constraint = {} if row.pattern is None else {"regex": row.pattern}
    adapter = {} if row.adapter is None else {"lora_path": row.adapter}
    sampling = {
        **PLAIN, **constraint,
        "max_new_tokens": row.max_tokens, "temperature": row.temperature, "sampling_seed": row.seed,
        "top_k": -1, "stop_token_ids": [row.end], "skip_special_tokens": False,
    }  # fmt: skip
    asked = {"input_ids": row.prompt_ids, "sampling_params": sampling, **adapter}
    return asked | {"return_logprob": True, "return_prompt_token_ids": True}


def _read_sglang(body: Mapping[str, Any]) -> Response:
    meta = body["meta_info"]
    reason = meta["finish_reason"]
    ended = _ended(reason["type"])
    if ended == "stop" and not isinstance(reason["matched"], int):
        # After a NaN it puts an end of the completion there, and says so here.
        raise ValueError(f"stopped by {reason['matched']!r}, which is no token")
    logprobs = tuple(token[0] for token in meta["output_token_logprobs"])
    ids, prompt_ids = tuple(body["output_ids"]), tuple(body["prompt_token_ids"])
    return Response(body["text"], ended, ids, logprobs, prompt_ids)


def _write_text(row: Request) -> dict[str, Any]:
    return {
        "model": row.model, "prompt": row.prompt, "max_tokens": row.max_tokens,
        "temperature": row.temperature, "seed": row.seed, "top_p": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0,  # top_k, min_p and others are unknown to some, who refuse them
    }  # fmt: skip


def _read_text(body: Mapping[str, Any]) -> Response:
    (choice,) = body["choices"]
    return Response(choice["text"], _ended(choice["finish_reason"]))


def _ended(reason: str | None) -> str:
    if reason not in ("stop", "length"):
        raise Unfinished(f"a completion that ended by {reason}")
    return reason


LORA = "load_lora_adapter"
DIALECTS = {
    "vllm": Dialect("/v1/completions", _write_vllm, _read_vllm, f"/v1/{LORA}", f"/v1/un{LORA}"),
    "sglang": Dialect("/generate", _write_sglang, _read_sglang, f"/{LORA}", f"/un{LORA}"),
    "text": Dialect("/v1/completions", _write_text, _read_text),
}
