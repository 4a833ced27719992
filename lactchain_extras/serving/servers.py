"""What servers have: models, flags for the record of a run, and adapters, loaded and unloaded.

Engines key what they have cached of a prompt by an adapter's name, so one name must never stand for
two contents. The hash of the files is such a name: it is new for every version, and a run that goes
on after a kill calls the same weights by the same name.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from lactchain.config.settings import PlayerConfig, ServedConfig
from lactchain.errors import ConfigError, DataError, ServerError
from lactchain.models.weights import ADAPTER_FILES
from lactchain.runs.run import Run
from lactchain.storage.files import sha256
from lactchain_extras.serving.dialects import DIALECTS, Dialect
from lactchain_extras.serving.transport import RefusedError, Transport, quoted, transport_of

log = logging.getLogger(__name__)

LETTERS = 16  # of the hash; two of a million adapters meet in them once in 10^7 such runs
PAGES = ("/version", "/server_info?config_format=json", "/get_server_info")
"""Where engines tell their version and flags: vLLM with VLLM_SERVER_DEV_MODE=1, and SGLang."""
PAGE_SECONDS = 2.0  # for one that fails: a run goes on without it
FLAGS = frozenset((
    "attention_backend", "cache_dtype", "context_length", "dtype", "enable_lora",
    "enable_deterministic_inference", "enable_prefix_caching", "enforce_eager", "generation_config",
    "grammar_backend", "kv_cache_dtype", "logprobs_mode", "lora_backend", "max_lora_rank",
    "max_loras", "max_model_len", "model", "model_path", "quantization", "revision",
    "sampling_backend", "tensor_parallel_size", "tokenizer_path", "tp_size", "version",
))  # fmt: skip
"""What answers may depend on. All else stays unread: such pages show keys of servers too."""


def models_at(transport: Transport, url: str) -> list[Mapping[str, Any]]:
    """What a server says that it has: the base, and adapters with their `parent`."""
    listed = transport.tell(url, "/v1/models")
    with suppress(KeyError, TypeError, AttributeError):
        cards = list(listed["data"])
        named = [f"{card['id'] + ''}{card.get('root')}".isprintable() for card in cards]
        if all(named) and any(not card.get("parent") for card in cards):
            return cards
    what = f"expected a list of models, got {quoted(str(listed), 80)}"
    mend = "give the address of the server itself as actor.served.urls"
    raise ServerError(f"{url}/v1/models: {what}; {mend}")


def names_at(transport: Transport, url: str) -> list[str]:
    """The names of what a server has: models and adapters."""
    return sorted(card["id"] for card in models_at(transport, url))


def bases_at(transport: Transport, url: str) -> list[Mapping[str, Any]]:
    """The models of a server without its adapters; one at least."""
    return [card for card in models_at(transport, url) if not card.get("parent")]


def common_base(transport: Transport, model: str) -> str:
    """The name that all servers have for a model; `ConfigError` where one has another model."""
    names = {}
    for url in transport.urls:
        base = bases_at(transport, url)[0]
        path = str(base.get("root") or base["id"])
        if not may_be(path, model):
            mend = "give the model that the server was started with, or another address"
            got = f"expected {path}, which {url} serves, got {model}"
            raise ConfigError(f"actor.model: {got}; {mend}")
        names[url] = base["id"]
    if len({*names.values()}) > 1:
        what = f"expected one name for the model, got {names}"
        mend = "give all servers the same --served-model-name"
        raise ConfigError(f"actor.served.urls: {what}; {mend}")
    return names[transport.urls[0]]


def may_be(there: str, here: str) -> bool:
    """Whether a server's model may be the one of a name here; a warning where that is a guess."""
    if there == here:
        return True
    if os.path.exists(there) and os.path.exists(here):  # of any name, too long or not
        return Path(there).samefile(here)
    alike = PurePath(there).name == PurePath(here).name
    if alike:
        guess = "actor.model: %s of the server is taken for %s by its last word alone"
        log.warning(f"{guess}; `lactchain doctor` compares tokenizers", there, here)
    return alike


def record(served: ServedConfig, run: Run) -> None:
    """Writes what servers are into a run's `environment.json`; a line where they were others."""
    transport, earlier = transport_of(served), run.environment.get("servers", {})
    found = {url: identity(transport, url) for url in transport.urls}
    for url, now in found.items():
        before = earlier.get(url, now)
        facts = sorted(fact for fact in {*before, *now} if before.get(fact) != now.get(fact))
        changes = ", ".join(f"{fact} was {before.get(fact)}, is {now.get(fact)}" for fact in facts)
        if changes:
            log.warning("%s: another engine than this run had before: %s", url, changes)
    run.note(servers=earlier | found)


def identity(transport: Transport, url: str) -> dict[str, str]:
    """Version, models and flags of a server, by name, as far as it tells them."""
    bases, keys = bases_at(transport, url), ("root", "max_model_len")
    listed = {f"{card['id']}.{key}": card.get(key) for card in bases for key in keys}
    facts = {name: fact for name, fact in listed.items() if fact is not None}
    for page in PAGES:
        with suppress(ServerError, RecursionError):  # it has none, or one that nobody can read
            facts |= _flags(transport.tell(url, page, patience=PAGE_SECONDS))
    return {quoted(name, 200): quoted(str(fact), 200) for name, fact in facts.items()}


def _flags(page: Any, inside: str = "") -> Iterator[tuple[str, Any]]:
    """The flags on a page, with the names of the parts that they are in."""
    for name, value in page.items() if isinstance(page, dict) else ():
        if name in FLAGS and isinstance(value, str | int | float):
            yield inside + name, value
        yield from _flags(value, f"{inside}{name}.")


def adapter_name(folder: str | Path) -> str:
    """The name of the adapter in a folder, by the bytes of its files; `DataError` of none."""
    paths = [Path(folder) / name for name in ADAPTER_FILES]
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected a LoRA adapter")
    content = "".join(map(sha256, paths))
    return f"lactchain-{hashlib.sha256(content.encode()).hexdigest()[:LETTERS]}"


def order(dialect: Dialect, name: str, folder: str | Path) -> tuple[str, dict[str, str]]:
    """The path and the body of a request that loads an adapter."""
    return dialect.load, {"lora_name": name, "lora_path": str(Path(folder).resolve())}


def load(transport: Transport, dialect: Dialect, name: str, folder: str | Path) -> None:
    """Loads an adapter on every server without it, out of a folder at the same place as here."""
    for url in transport.urls:
        if name not in names_at(transport, url):
            try:
                transport.tell(url, *order(dialect, name, folder))
            except RefusedError as error:
                if error.status != 404 or "Not Found" not in str(error):
                    raise
                flags = "--enable-lora, and vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
                raise ConfigError(f"{url}: takes no adapters; start it with {flags}") from error


def unload(transport: Transport, dialect: Dialect, name: str, folder: str | Path) -> None:
    """Unloads an adapter from every server that has it out of this folder, and of no other run."""
    ours = {"id": name, "root": str(Path(folder).resolve())}
    for url in transport.urls:
        if any(ours.items() <= card.items() for card in models_at(transport, url)):
            try:
                transport.tell(url, dialect.unload, {"lora_name": name})
            except RefusedError as error:
                if error.status not in (400, 404):  # somebody else has done so
                    raise


def sync(config: PlayerConfig, earlier: Iterable[str | Path]) -> None:
    """Loads the adapter of an actor on its servers; then unloads the run's own before it."""
    transport, dialect = transport_of(config.served), DIALECTS[config.served.dialect]
    current = None
    if config.adapter is not None:
        current = adapter_name(config.adapter)
        load(transport, dialect, current, config.adapter)
    for folder in earlier:
        if (name := adapter_name(folder)) != current:
            unload(transport, dialect, name, folder)
