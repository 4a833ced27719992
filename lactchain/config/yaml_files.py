"""Files of settings: those that are shipped, and how any is read within bounds, and written.

What is shipped lies at the top of a clone, and inside the package where that was installed from a
wheel. What is written reads back as it was. Files, and texts on a command line, may be of anybody.
Brackets within brackets are more than a stack holds, and aliases of aliases more than memory does:
a value is written out where it is used.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from lactchain.errors import ConfigError

_PACKAGE = Path(__file__).parent.parent
SHIPPED = _PACKAGE if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent
"""Holds the folders of what is shipped: scripts, and configurations for each of them."""
CONFIGS = SHIPPED / "configs"
"""Holds `<script>/<setting>.yaml`, and `accelerate/` for processes and devices."""
MOST_CHARACTERS, MOST_VALUES, MOST_LEVELS = 500_000, 20_000, 50
MOST_SHOWN = 600
"""Characters of what somebody gave, in a line that says what is wrong with it."""


def shipped_settings(script: str) -> list[str]:
    """The names of the configurations that a script is shipped with."""
    return sorted(file.stem for file in (CONFIGS / script).glob("*.yaml"))


def with_files(script: str, arguments: Iterable[str]) -> list[str]:
    """The arguments of a script, with a shipped file in the place of each name after `--config`.

    `ConfigError` where the script has no configuration of that name.
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
    known = shipped_settings(script)
    if name not in known:
        raise ConfigError(
            f"--config {name}: expected a file, or one of {', '.join(known)}; write ./{name} for a "
            "file of that name"
        )
    return CONFIGS / script / f"{name}.yaml"


class Refused(yaml.YAMLError):
    """More than any settings hold, or a value that is not what its tag says: `!!timestamp x`."""


class _Loader(yaml.SafeLoader):
    """Reads 1e-5 as a number, as jsonargparse does and PyYAML does not; stops at too much."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise Refused(f"expected at most {MOST_CHARACTERS:,} characters, got {len(text):,}")
        super().__init__(text)
        self._values = self._levels = 0

    def construct_document(self, node: yaml.Node) -> Any:
        """What a document stands for; PyYAML's own errors are of many kinds (6.0)."""
        try:
            return super().construct_document(node)
        except (AttributeError, LookupError, TypeError) as error:
            raise Refused(
                f"expected YAML, got a value that is not what its tag says ({error})"
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        """A mapping of names; of two values of one name PyYAML would take the last, unseen."""
        found = super().construct_mapping(node, deep)
        for name in found:
            if not isinstance(name, str):
                raise Refused(f"expected a name, got {name!r}; in quotes it is one")
        names = [key.value for key, _ in node.value]
        if len(found) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise Refused(f"expected each name once, got {twice} twice; leave one out")
        return found

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        """The next value, with all that is in it."""
        self._values += 1
        self._levels += 1
        if self._values > MOST_VALUES:
            raise Refused(f"expected at most {MOST_VALUES:,} values, got more")
        if self._levels > MOST_LEVELS:
            raise Refused(f"expected at most {MOST_LEVELS} levels, got more")
        if self.check_event(yaml.AliasEvent) and self.peek_event().anchor in self.anchors:
            raise Refused(f"expected the value itself, got its alias *{self.peek_event().anchor}")
        node = super().compose_node(parent, index)
        self._levels -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes the text "1e-5", so that it stays text, and writes what occurs twice twice."""

    def ignore_aliases(self, _: Any) -> bool:
        """Nothing has one."""
        return True


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
        "-+0123456789",
    )
_Dumper.add_representer(tuple, yaml.SafeDumper.represent_list)


def to_yaml(settings: Mapping[str, Any]) -> str:
    """YAML that `parse` and `load` read back as it was."""
    return yaml.dump(settings, Dumper=_Dumper, sort_keys=False)


def load(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file; `ConfigError` where there is none."""
    shown = in_short(str(path))
    try:
        if Path(path).exists() and not Path(path).is_file():  # a pipe may have no end
            raise ConfigError(f"{shown}: expected a YAML file, got a folder, a pipe or a device")
        loaded = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ConfigError(f"{shown}: expected a YAML file, got {error.strerror}") from error
    except Refused as error:
        raise ConfigError(f"{shown}: {in_short(str(error))}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{shown}: expected YAML, got {in_short(str(error))}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{shown}: expected a YAML mapping, got {type(loaded).__name__}")
    return loaded


def check_value(key: str, value: Any) -> None:
    """Refuses what jsonargparse would take for more than the value of a setting (4.53).

    It reads every text as YAML once more, in C, which dies of deep nesting, and writes all aliases
    out. And it imports the module of whatever stands below the key `class_path`. `ConfigError`
    where there is too much in a text, or a class is named.
    """
    if isinstance(value, Mapping):
        for name, part in value.items():
            check_value(f"{key}.{name}", part)
    elif isinstance(value, list | tuple):
        for part in value:
            check_value(key, part)
    elif isinstance(value, str) and "\0" in value:  # C would end a name there
        raise ConfigError(f"{in_short(key)}: expected a text without the character 0")
    elif isinstance(value, str) and (inner := read_text(key, value)) != value:
        check_value(key, inner)
    if key.endswith(".class_path"):
        raise ConfigError(f"{in_short(key)}: expected settings, got the name of a class")


def read_text(key: str, text: str) -> Any:
    """What a text is as YAML: itself, as a rule; `ConfigError` where there is too much in it."""
    try:
        return yaml.load(text, Loader=_Loader)
    except Refused as error:
        raise ConfigError(f"{in_short(key)}: {in_short(str(error))}") from error
    except (yaml.YAMLError, ValueError):
        return text


def in_short(text: str) -> str:
    """A text on one line, without its middle where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN // 2]} … {text[-100:]}"
