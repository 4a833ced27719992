"""Same run: which settings may change while a run goes on, and what of them is written down."""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lactchain.errors import ConfigError
from lactchain.moved import is_same_place

# Fields that may change when a run continues, since they do not change what it computes.
HARMLESS = frozenset((
    "run_dir", "resume", "timeout_minutes", "report_to", "logging_steps", "log_every_steps",
    "save_every_updates", "save_every_steps", "keep_checkpoints", "push_to_hub", "public",
    "urls", "in_flight", "timeout_seconds", "max_drift",
))  # fmt: skip
_SECRET = re.compile(
    r"(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)tokens?$"
    r"|secret|passw|credential|authorization|cookie|^(auth|pat)$|(api|access|private)[_-]?keys?",
    re.I,
)
_SECRET_IN_URL = re.compile(
    r"(?<=://)[^/\s]+(?=@)"
    r"|(?<=[?&])([^=&#\s]*(?:token|key|secret|sig|passw|credential|auth)[^=&#\s]*=)[^&#\s]+",
    re.I,
)

log = logging.getLogger(__name__)


def identity_of(settings: Mapping[str, Any]) -> str:
    """A word for what settings compute."""
    identity = _without_harmless(settings)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def without_moved(
    directory: Path, before: Mapping[str, Any], changed: dict[str, tuple[Any, Any]]
) -> dict[str, tuple[Any, Any]]:
    """The changes but for places inside a run, a pipeline say, that was moved or copied."""
    run = before.get("run")
    folder = run.get("run_dir") if isinstance(run, Mapping) else None
    if not isinstance(folder, str):
        return changed
    return {
        key: (old, new)
        for key, (old, new) in changed.items()
        if not is_same_place(old, folder, new, directory)
    }


def check_changes(directory: Path, changed: Mapping[str, tuple[Any, Any]]) -> None:
    """Logs harmless changes, each a field with its value before and now; refuses any other."""
    lines = {key: f"{key} was {old!r}, now {new!r}" for key, (old, new) in changed.items()}
    refused = [key for key in changed if HARMLESS.isdisjoint(key.split("."))]
    if refused:
        raise ConfigError(
            f"{directory}: made by another configuration ({'; '.join(lines[k] for k in refused)}); "
            "choose another folder with --run.run_dir, or the old configuration with "
            f"--config {directory}/config.yaml"
        )
    for line in lines.values():
        log.info("%s: continues with a harmless change: %s", directory, line)


def _without_harmless(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_harmless(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if key not in HARMLESS
    }


def redact(value: Any, is_secret: bool = False) -> Any:
    """Settings without secrets: texts under a key that says so, and what URLs hold of them."""
    if isinstance(value, str):
        return "<redacted>" if is_secret else _SECRET_IN_URL.sub(r"\1<redacted>", value)
    if isinstance(value, list):
        return [redact(part, is_secret) for part in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: redact(part, is_secret or _SECRET.search(str(key)) is not None)
        for key, part in value.items()
    }
