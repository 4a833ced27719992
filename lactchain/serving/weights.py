"""Adapters on servers: loaded under a name made of their content, unloaded when another comes.

Engines key what they have cached of a prompt by an adapter's name, so one name must never stand for
two contents. The hash of the files is such a name: it is new for every version, and a run that goes
on after a kill calls the same weights by the same name.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lactchain.errors import ConfigError, DataError, ServerError
from lactchain.files import sha256
from lactchain.serving.dialects import DIALECTS, Dialect
from lactchain.serving.replies import one_line
from lactchain.serving.transport import RefusedError, Transport, transport_of
from lactchain.settings import PlayerConfig

FILES = ("adapter_config.json", "adapter_model.safetensors")
PREFIX = "lactchain-"
LETTERS = 16
"""Of the hash; two of a million adapters meet in them once in 10^7 such runs."""


def adapter_name(folder: str | Path) -> str:
    """The name of the adapter in a folder, by the bytes of its files.

    Raises:
        DataError: there is none.
    """
    paths = [Path(folder) / name for name in FILES]
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected a LoRA adapter")
    content = "".join(map(sha256, paths))
    return PREFIX + hashlib.sha256(content.encode()).hexdigest()[:LETTERS]


def models_at(transport: Transport, url: str) -> list[Mapping[str, Any]]:
    """What a server says that it has: the base, and adapters with their `parent`."""
    return transport.get(url, "/v1/models", partial(_cards, url))


def _cards(url: str, text: str) -> list[Mapping[str, Any]]:
    try:
        cards = json.loads(text)["data"]
        named = all(
            isinstance(card["id"], str) and f"{card['id']} {card.get('root')}".isprintable()
            for card in cards
        )
        if named and any(not card.get("parent") for card in cards):
            return cards
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ServerError(
        f"{url}/v1/models: expected a list of models, got {one_line(text, 80)!r}; give "
        "the address of the server itself as actor.served.urls"
    )


def load(transport: Transport, dialect: Dialect, name: str, folder: str | Path) -> None:
    """Loads an adapter on every server that has none of its name.

    Its folder must lie at the same place for the servers as here. Several processes may do so at
    once: to be the second is no error.
    """
    for url in transport.urls:
        if name in names_at(transport, url):
            continue
        try:
            transport.tell(url, *order(dialect, name, folder))
        except RefusedError as error:
            if error.status == 404 and "Not Found" in str(error):
                raise ConfigError(
                    f"{url}: takes no adapters; start it with --enable-lora, and vLLM with "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
                ) from error
            if "already" not in str(error):
                raise


def order(dialect: Dialect, name: str, folder: str | Path) -> tuple[str, dict[str, str]]:
    """The path and the body of a request that loads an adapter."""
    return dialect.load, {"lora_name": name, "lora_path": str(Path(folder).resolve())}


def unload(transport: Transport, dialect: Dialect, name: str, folder: str | Path) -> None:
    """Unloads an adapter from every server that has it out of this folder.

    One of the same content that another run has loaded, out of a folder of its own, stays.
    """
    ours = {"id": name, "root": str(Path(folder).resolve())}
    for url in transport.urls:
        if any(ours.items() <= card.items() for card in models_at(transport, url)):
            try:
                transport.tell(url, dialect.unload, {"lora_name": name})
            except RefusedError as error:
                if error.status not in (400, 404):  # somebody else has done so
                    raise


def sync(config: PlayerConfig, earlier: Iterable[str | Path]) -> None:
    """Loads the adapter of an actor on its servers; then unloads those that came before it.

    Args:
        earlier: folders of the run's own adapters, of which none is needed any more.
    """
    transport, dialect = transport_of(config.served), DIALECTS[config.served.dialect]
    current = None
    if config.adapter is not None:
        current = adapter_name(config.adapter)
        load(transport, dialect, current, config.adapter)
    for folder in earlier:
        if (name := adapter_name(folder)) != current:
            unload(transport, dialect, name, folder)


def names_at(transport: Transport, url: str) -> set[str]:
    """The names of what a server has: models and adapters."""
    return {str(card["id"]) for card in models_at(transport, url)}
