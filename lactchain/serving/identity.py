"""What servers say of themselves: for the record of a run, and to notice another one."""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from lactchain.errors import ServerError
from lactchain.run import Run
from lactchain.serving.replies import one_line
from lactchain.serving.transport import Transport, transport_of
from lactchain.serving.weights import models_at
from lactchain.settings import ServedConfig

log = logging.getLogger(__name__)

PAGES = ("/server_info?config_format=json", "/get_server_info")
"""Where engines tell their flags: vLLM with VLLM_SERVER_DEV_MODE=1, and SGLang, now and once."""

CARD = ("root", "max_model_len")
"""What is read of a model on the list of those that are served."""

FLAGS = frozenset((
    "attention_backend", "cache_dtype", "context_length", "data_parallel_size",
    "disable_radix_cache", "dp_size", "dtype", "enable_deterministic_inference", "enable_lora",
    "enable_prefix_caching", "enforce_eager", "generation_config", "grammar_backend",
    "kv_cache_dtype", "logprobs_mode", "lora_backend", "max_lora_rank", "max_loras",
    "max_loras_per_batch", "max_model_len", "model", "model_path", "quantization", "revision",
    "sampling_backend", "tensor_parallel_size", "tokenizer_path", "tp_size",
))  # fmt: skip
"""What answers may depend on. All else stays unread: such pages show keys of servers too."""

LONGEST = 200
"""Letters of what is written down of a flag."""

PAGE_SECONDS = 2.0
"""How long a page that fails is asked for: a run goes on without it."""

DEEPEST = 8
"""Parts within parts that are looked at; engines have two."""


def record(served: ServedConfig, run: Run) -> None:
    """Writes what servers are into a run's `environment.json`; a line where they were others."""
    transport = transport_of(served)
    earlier = run.environment.get("servers", {})
    found = {url: identity(transport, url) for url in transport.urls}
    for url, now in found.items():
        if changes := ", ".join(_changes(earlier.get(url, now), now)):
            log.warning("%s: another engine than this run had before: %s", url, changes)
    run.note(servers=earlier | found)


def identity(transport: Transport, url: str) -> dict[str, str]:
    """Version, models and flags of a server, by name, as far as it tells them."""
    cards = [card for card in models_at(transport, url) if not card.get("parent")]
    told = next(filter(None, (_page(transport, url, page) for page in PAGES)), {})
    version = _page(transport, url, "/version").get("version") or told.get("version")
    models = {f"{card['id']}.{key}": card.get(key) for card in cards for key in CARD}
    facts = {"version": version, **models, **dict(_flags(told))}
    return {
        _written(transport, name): _written(transport, value)
        for name, value in facts.items()
        if value is not None
    }


def _written(transport: Transport, told: Any) -> str:
    """What a server says, as it may stand in a file and on the screen."""
    return one_line(transport.hidden(str(told)), LONGEST)


def _page(transport: Transport, url: str, path: str) -> Mapping[str, Any]:
    """What a page says; nothing where there is none, or none that can be read."""
    try:
        told = json.loads(transport.get(url, path, patience=PAGE_SECONDS))
    except (ServerError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _flags(told: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The flags on a page, with the names of the parts that they are in, up to `DEEPEST`."""
    for name, value in told.items():
        if isinstance(value, dict):
            parts = _flags(value, depth + 1) if depth < DEEPEST else ()
            yield from ((f"{name}.{inner}", found) for inner, found in parts)
        elif name in FLAGS and isinstance(value, str | int | float):
            yield name, value


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{name} was {before.get(name)}, is {now.get(name)}"
