"""How engines are spoken to: what a row is written as, and what its answer is read as.

From vLLM 0.33's `entrypoints/openai/completion/protocol.py` and `entrypoints/serve/lora`, and
SGLang 0.5.23's `api/v1/api_types.py` and `managers/tokenizer_manager.py`. Everything that an engine
would else take from the model's `generation_config.json` is said, since the probabilities of a
truncated distribution are others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lactchain.serving.replies import Unfinished

PLAIN = {
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""The distribution of the model, and nothing else's."""


@dataclass(frozen=True)
class Row:
    """What is asked of an engine: one completion.

    Attributes:
        model: the base, by the name that the servers have for it.
        adapter: the name of the adapter on it, if any.
        prompt, prompt_ids: as text, which begins without the token that the tokenizer itself puts
            before a text; and as tokens, with it.
        seed: of the row's own randomness, below 2**63.
        temperature: 0 is greedy.
        max_tokens: of the completion.
        end: the token that ends a completion.
        pattern: of a constrained completion, a regular expression; None: free.
    """

    model: str
    adapter: str | None
    prompt: str
    prompt_ids: Sequence[int]
    seed: int
    temperature: float
    max_tokens: int
    end: int
    pattern: str | None


@dataclass(frozen=True)
class Reply:
    """What an engine answers: its text; tokens where it gives them; why it ended.

    Attributes:
        prompt_ids: the tokens that it has read; none where it answers texts alone.
    """

    text: str
    ended: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    prompt_ids: Sequence[int] = ()


@dataclass(frozen=True)
class Dialect:
    """The words of one kind of engine.

    Attributes:
        ask: the path where rows are asked.
        write: a row, as the body of a request.
        read: the body of its answer; `KeyError`, `IndexError` or `TypeError` where parts are
            missing.
        load, unload: the paths that take adapters; empty: it has none, no tokens, no constraints.
    """

    ask: str
    write: Callable[[Row], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], Reply]
    load: str = ""
    unload: str = ""

    @property
    def has_tokens(self) -> bool:
        """Whether completions come with tokens, and can be constrained."""
        return bool(self.load)


def _write_vllm(row: Row) -> dict[str, Any]:
    constraint = {} if row.pattern is None else {"structured_outputs": {"regex": row.pattern}}
    return {
        "model": row.adapter or row.model,
        "prompt": row.prompt_ids,
        "max_tokens": row.max_tokens,
        "temperature": row.temperature,
        "seed": row.seed,
        "top_k": 0,
        **PLAIN,
        "stop_token_ids": [row.end],
        "ignore_eos": True,  # other ends than this one, which `generation_config.json` may have
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
        **constraint,
    }


def _read_vllm(body: Mapping[str, Any]) -> Reply:
    (choice,) = body["choices"]
    return Reply(
        choice["text"],
        _ended(choice["finish_reason"]),
        tuple(choice["token_ids"]),
        tuple(choice["logprobs"]["token_logprobs"]),
        tuple(choice["prompt_token_ids"]),
    )


def _write_sglang(row: Row) -> dict[str, Any]:
    constraint = {} if row.pattern is None else {"regex": row.pattern}
    adapter = {} if row.adapter is None else {"lora_path": row.adapter}
    sampling = {
        "max_new_tokens": row.max_tokens,
        "temperature": row.temperature,
        "sampling_seed": row.seed,
        "top_k": -1,
        **PLAIN,
        "stop_token_ids": [row.end],
        "skip_special_tokens": False,
        **constraint,
    }
    return {
        "input_ids": row.prompt_ids,
        "sampling_params": sampling,
        "return_logprob": True,
        "return_prompt_token_ids": True,
        **adapter,
    }


def _read_sglang(body: Mapping[str, Any]) -> Reply:
    told = body["meta_info"]
    reason = told["finish_reason"]
    ended = _ended(reason["type"])
    if ended == "stop" and not isinstance(reason["matched"], int):
        # After a NaN it puts an end of the completion there, and says so here.
        raise ValueError(f"stopped by {reason['matched']!r}, which is no token")
    return Reply(
        body["text"],
        ended,
        tuple(body["output_ids"]),
        tuple(token[0] for token in told["output_token_logprobs"]),
        tuple(body["prompt_token_ids"]),
    )


def _write_text(row: Row) -> dict[str, Any]:
    return {
        "model": row.model,
        "prompt": row.prompt,
        "max_tokens": row.max_tokens,
        "temperature": row.temperature,
        "seed": row.seed,
    }


def _read_text(body: Mapping[str, Any]) -> Reply:
    (choice,) = body["choices"]
    return Reply(choice["text"], _ended(choice["finish_reason"]))


def _ended(reason: str | None) -> str:
    if reason not in ("stop", "length"):
        raise Unfinished(f"a completion that ended by {reason}")
    return reason


DIALECTS = {
    "vllm": Dialect(
        "/v1/completions",
        _write_vllm,
        _read_vllm,
        load="/v1/load_lora_adapter",
        unload="/v1/unload_lora_adapter",
    ),
    "sglang": Dialect(
        "/generate",
        _write_sglang,
        _read_sglang,
        load="/load_lora_adapter",
        unload="/unload_lora_adapter",
    ),
    "text": Dialect("/v1/completions", _write_text, _read_text),
}
