"""Configuration: frozen dataclasses, filled from defaults < YAML files < command line.

`parse` is the only door to jsonargparse. A config class is a frozen dataclass whose fields are
plain values or further config classes (or `None` for one that may be left out); the string under
a field is its help text, and `__post_init__` raises `ValueError("field: expected ..., got ...")`
for values that make no sense.
"""

import argparse
import difflib
import functools
import json
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import jsonargparse
import yaml

from lactchain.config.yaml_files import check_value, in_short, load, to_yaml
from lactchain.errors import ConfigError

Config = TypeVar("Config")
LISTS = (list[str], tuple[str, ...])

SAID = {"--import": "the name of a module", "--workers": "ray:N"}
"""Options of a command that are no settings, and what follows them."""

jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


_ANNOTATED = re.compile(r"Annotated\[(\w+), (a number in .*?[\])]|[^\[\]]+)\]")


class _HelpFormatter(jsonargparse.DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """jsonargparse's help (types and defaults), with line breaks kept and bounds in plain words."""

    def _expand_help(self, action: argparse.Action) -> str:
        return _ANNOTATED.sub(r"\1, \2", super()._expand_help(action))


def parse(
    config_class: type[Config], argv: Sequence[str] | None = None, description: str | None = None
) -> Config:
    """The configuration that files and command line ask for.

    `--config FILE` may be repeated, later files win, and single options such as
    `--critic.lora.r 8` win over files. `--help` and `--print_config` print and exit.

    Args:
        config_class: a frozen dataclass.
        argv: the arguments, those of the process by default.
        description: what `--help` begins with, usually the docstring of the script.

    Raises:
        ConfigError: unknown key, wrong type, unreadable file, or a value that the class refuses;
            the message names the key.
    """
    _, argv = take_options(sys.argv[1:] if argv is None else argv)
    known = keys(config_class)
    argv = _with_lists(known, argv)
    parser = _parser(config_class, description)
    in_files: dict[str, Any] = {}
    for path in [value for name, value in _options(argv) if name == "config" and value]:
        found = dict(flatten(load(path)))
        strange = [key for key in found if not _is_known(key, known)]
        if len(strange) > 1:
            raise ConfigError(
                f"{path}: {strange[0]} and {len(strange) - 1} more: no such keys; it looks like a "
                "file of another command"
            )
        _check(found.items(), known)
        in_files |= found
    own = ("config", "help", "print_config")  # of the parser
    _check([(key, value) for key, value in _options(argv) if key not in own], known)
    try:
        namespace = parser.parse_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(in_short(_explain(str(error)))) from error
    typed = {name for name, _ in _options(argv)}
    texts = {
        key: value
        for key, value in in_files.items()
        if isinstance(value, str) and not any(f"{key}.".startswith(f"{t}.") for t in typed)
    }
    return _build(config_class, namespace.as_dict(), texts)


@functools.cache
def _parser(config_class: type, description: str | None) -> jsonargparse.ArgumentParser:
    parser = jsonargparse.ArgumentParser(
        usage="%(prog)s [--config FILE ...] [--key value ...]",
        description=description,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument(
        "--config",
        action=jsonargparse.ActionConfigFile,
        metavar="FILE",
        help="YAML file with any of the keys below; may be repeated, later files win.",
    )
    parser.add_class_arguments(config_class, fail_untyped=True)
    return parser


def dump(config: Any) -> str:
    """YAML of a config dataclass, which is itself a valid `--config` file."""
    return to_yaml(asdict(config))


def to_dict(config: Any) -> dict[str, Any]:
    """A config dataclass as the mapping that `load` reads from its YAML."""
    return yaml.safe_load(dump(config))


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys at which two nested mappings differ, with both values.

    A missing key counts as `None`, so leaving an optional part out equals setting it to null.
    """
    flat_a, flat_b = dict(flatten(a)), dict(flatten(b))
    pairs = {key: (flat_a.get(key), flat_b.get(key)) for key in flat_a | flat_b}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with other values of dotted fields, all at once: they are judged as a whole."""
    changes: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            changes[head] = value
    changes |= {head: with_values(getattr(config, head), part) for head, part in nested.items()}
    return replace(config, **changes)


def take_options(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What is said of one command, and its other arguments.

    The switches `dry_run`, which many type with a hyphen, and `inexact`, and the lists of words
    `modules` and `workers`, are no settings: no file holds them. `ConfigError` where nothing
    follows an option that takes words.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--dry_run", "--dry-run", action="store_true")
    parser.add_argument("--inexact", action="store_true")
    parser.add_argument("--import", dest="modules", action="extend", type=_words, default=[])
    parser.add_argument("--workers", action="extend", type=_words, default=[])
    try:
        return parser.parse_known_args([*argv])
    except argparse.ArgumentError as error:
        name = error.argument_name
        problem = f"{name}: expected {SAID[name]}, got none" if name in SAID else str(error)
        raise ConfigError(problem) from error


def _words(text: str) -> list[str]:
    if not text or text.startswith("-"):
        raise ValueError
    return text.split(",")


def typed_modules(argv: Sequence[str]) -> list[str]:
    """The modules of the environments, `module:id`, that a command itself names."""
    found = [value.rpartition(":")[0] for name, value in _options(argv) if name.endswith(".id")]
    return [module for module in found if module]


def _options(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What a command gives to each key."""
    for word, following in pairwise([*argv, ""]):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            yield name.removeprefix("--"), value if equals else following


def _check(found: Iterable[tuple[str, Any]], known: Mapping[str, Any]) -> None:
    """Refuses keys that are none, and values that jsonargparse would take for files or code."""
    for key, value in found:
        if not _is_known(key, known):
            near = _near(key, known)
            mend = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(in_short(f"{key}: no such key{mend}"))
        check_value(key, value)
        if _nested_class(known.get(key)) and value not in (None, "null"):
            below, got = f"settings below it, such as --{key}.NAME", in_short(str(value))
            raise ConfigError(f"{key}: expected {below}, got {got}")


def _is_known(key: str, known: Mapping[str, Any]) -> bool:
    """Whether a key is one, or lies in one that holds anything."""
    above = [key[: dot.start()] for dot in re.finditer(r"\.", key)]
    return key in known or any(name in known and not _nested_class(known[name]) for name in above)


def _with_lists(known: Mapping[str, Any], argv: Sequence[str]) -> list[str]:
    """The arguments of a command, with a list of one text in the place of a text alone."""
    found = [*argv]
    for place, word in enumerate(found):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or known.get(name) not in LISTS:
            continue
        value = value if equals else "".join(found[place + 1 : place + 2])
        if value and not value.startswith(("[", "-")) and value != "null":
            found[place : place + (1 if equals else 2)] = [f"--{name}=[{json.dumps(value)}]"]
    return found


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of nested mappings, with their values; tuples as lists."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(value) if isinstance(value, tuple) else value


def _nested_class(annotation: Any) -> type | None:
    """The config class behind `Nested` or `Nested | None`, None for a plain value."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    candidates = typing.get_args(annotation) if is_union else (annotation,)
    return next((c for c in candidates if isinstance(c, type) and is_dataclass(c)), None)


def _build(
    config_class: type[Config], values: dict[str, Any], texts: Mapping[str, str], prefix: str = ""
) -> Config:
    """Instantiates inside out, so that a refused value is reported under its full key."""
    annotations = typing.get_type_hints(config_class)
    arguments = {}
    for item in fields(config_class):
        if item.name not in values:  # a file says null of the part, and the command fills it
            continue
        key, value = f"{prefix}{item.name}", values[item.name]
        annotation = annotations[item.name]
        choices, nested = typing.get_args(annotation), _nested_class(annotation)
        if str in choices:
            value = _restore_texts(value, key, texts)
        if value is None and annotation is not Any and types.NoneType not in choices:
            raise ConfigError(f"{key}: expected a value, got null; leave it out for the default")
        if nested and value is not None:
            value = _build(nested, value, texts, f"{key}.")
        if typing.get_origin(annotation) is dict and is_dataclass(part := choices[1]):
            value = {n: _build(part, v, texts, f"{key}.{n}.") for n, v in value.items()}
        arguments[item.name] = value
    try:
        return config_class(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(in_short(f"{prefix}{error}")) from error


def _restore_texts(value: Any, key: str, texts: Mapping[str, str]) -> Any:
    """The value with the texts of files as they stand there.

    jsonargparse reads a text in a dictionary or an optional field as YAML once more (4.53), so
    that a quoted "# Title" would come out as None.
    """
    if key in texts:
        return texts[key]
    if isinstance(value, dict):
        return {k: _restore_texts(v, f"{key}.{k}", texts) for k, v in value.items()}
    return value


def keys(config_class: type) -> dict[str, Any]:
    """The dotted keys of a config class, and of those in it, each with its annotation."""
    return {key: annotation for key, _, annotation in fields_of(config_class)}


def fields_of(config_class: type, prefix: str = "") -> Iterator[tuple[str, Field, Any]]:
    """The fields of a config class, and of those in it: dotted key, field, annotation."""
    hints = typing.get_type_hints(config_class)
    for item in fields(config_class):
        key, annotation = f"{prefix}{item.name}", hints[item.name]
        yield key, item, annotation
        if nested := _nested_class(annotation):
            yield from fields_of(nested, f"{key}.")


def _near(key: str, known: Iterable[str]) -> list[str]:
    """Up to three keys that somebody may have meant: some end in these words, others read alike."""
    ending = [name for name in known if f".{name}".endswith(f".{key}")]
    last = {name.rpartition(".")[2] for name in known}
    word = difflib.get_close_matches(key.rpartition(".")[2], last, n=1, cutoff=0.8)
    same = [name for name in known if name.rpartition(".")[2] in word]
    return list(dict.fromkeys([*ending, *difflib.get_close_matches(key, known, n=3), *same]))[:3]


def _explain(message: str) -> str:
    """One line out of jsonargparse's several: which key, what was expected, what it got."""
    path = ".".join(re.findall(r'Parser key "([^"]+)"', message))
    if path and (option := re.search(r"Option '(.+?)' is not accepted", message)):
        return f"{path}.{option[1]}: no such key"
    line = " ".join(message.split())
    if line == "Unexpected config:":
        return "--config: expected the name of a configuration, or a file, got nothing"
    if path and (given := re.search(r"Unable to load config '(.*?)'", line)):
        part = path.partition(".")[0]
        return f"{part}: expected settings below it, such as --{part}.NAME, got {given[1]}"
    if union := re.search(r"Union subtypes Subtypes: \[(.*)\] Errors: .* Given value: (.*)", line):
        kinds = re.findall(r"(?<![\w.])(int|float|str|bool|list|tuple|NoneType)\b", union[1])
        names = ["null" if kind == "NoneType" else kind for kind in dict.fromkeys(kinds)]
        if names != ["null"]:  # else of a part, whose own line follows
            return f"{path}: expected {' or '.join(names)}, got {union[2]}"
    wrong = re.search(r"Expected an? (.+?)\. Got value: (.*)", message)
    if wrong and path:
        expected = re.sub(r"<class '(.+?)'>", r"\1", wrong[1]).replace("typing.", "")
        if literal := re.fullmatch(r"Literal\[(.*)\]", expected):
            expected = "one of " + literal[1].replace("'", "")
        if expected.startswith(("tuple", "list")):
            expected = "a list, such as '[first, second]'"
        return f"{path}: expected {expected}, got {wrong[2]}"
    return line
