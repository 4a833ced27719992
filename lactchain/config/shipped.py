"""What is shipped beside the package: the scripts, and configurations for each of them.

They lie at the top of a clone, and inside the package where that was installed from a wheel.
"""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from lactchain.errors import ConfigError

_PACKAGE = Path(__file__).parent.parent
_FOLDER = _PACKAGE if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent

CONFIGS = _FOLDER / "configs"
"""Holds `<script>/<setting>.yaml`, and `accelerate/` for processes and devices."""


def scripts() -> dict[str, Path]:
    """The file of each script, by its name."""
    return {file.stem: file for file in sorted((_FOLDER / "scripts").glob("*.py"))}


def script(name: str) -> Path:
    """The file of a script; `ConfigError` with the nearest names where there is none."""
    found = scripts()
    if name not in found:
        near = difflib.get_close_matches(name, [*found, "quickstart"], n=3)
        mend = f"did you mean {' or '.join(near)}?" if near else "`lactchain` alone lists them"
        raise ConfigError(f"{name}: no such command; {mend}")
    return found[name]


def settings(script: str) -> list[str]:
    """The names of the configurations that a script is shipped with."""
    return sorted(file.stem for file in (CONFIGS / script).glob("*.yaml"))


def with_files(script: str, arguments: Iterable[str]) -> list[str]:
    """The arguments of a script, with a shipped file in the place of each name after `--config`.

    Raises:
        ConfigError: the script has no configuration of that name.
    """
    found, option = [], ""
    for word in arguments:
        if word.startswith("--config="):
            option, word = "--config", word.removeprefix("--config=")
            found.append(option)
        found.append(str(_file(script, word)) if option == "--config" else word)
        option = word
    return found


def _file(script: str, name: str) -> str | Path:
    """The shipped file of a name; whatever else than a word it is, it is a path already."""
    if not re.fullmatch(r"\w+", name):
        return name
    known = settings(script)
    if name not in known:
        raise ConfigError(
            f"--config {name}: expected a file, or one of {', '.join(known)}; write ./{name} for a "
            "file of that name"
        )
    return CONFIGS / script / f"{name}.yaml"
