"""Configurations that nobody would write, into `parse` of every program.

Each is a file or the words of a command. It is a configuration that survives being written, or a
`ConfigError` of one line, within seconds and little memory, and no module is imported for it.
"""

import json
import os
import re
import runpy
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import hypothesis
import yaml
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from fault_matrix.cases import Case, Verdict, bad, good
from fault_matrix.processes import SCRIPTS, ended, server
from lactchain.config.parsing import _flatten, _keys, dump, parse, to_dict
from lactchain.config.shipped import CONFIGS
from lactchain.errors import ConfigError

CONFIGS_A_CASE, CASES_OF_EACH = 100, 5
MOST_SECONDS, MOST_BYTES, MOST_LINE = 2.0, 200 * 2**20, 1_500
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
FOREIGN = "foreign_code"

TEXTS = [
    "", "null", "~", "1e-5", "{x}", "{", "[", "- a", "a: b", "*a", "&a", "!!int x", "\x00",
    "\ud800", "\u202e", "1:30", "0o7", "%s", "-", "--", "--help ", "True", ".nan",
]  # fmt: skip
"""What somebody may have typed, or a program may have spoiled."""
ATTACKS = [
    "!!python/name:os", f"{FOREIGN}.Thing", f"{FOREIGN}:World-v0",
    f"{{class_path: {FOREIGN}.Thing}}", "/etc/passwd", "../..", "<script>", "[bold]",
    "http://u:p@h/", "x" * 5_000, "[" * 5_000, "9" * 5_000,
]  # fmt: skip
"""What somebody may have written on purpose."""
_NINE = [(a, b, ", ".join([f"*{a}"] * 9)) for a, b in pairwise("abcdefghij")]
BOMBS = [
    "{a: &a [x, x, x, x], " + "".join(f"{b}: &{b} [{nine}], " for _, b, nine in _NINE) + "}",
    "{a: &a {x: 1}, " + "".join(f"{b}: &{b} {{<<: [{nine}]}}, " for _, b, nine in _NINE) + "}",
    "&a [*a]", "[" * 60_000, "{a: " * 60_000, "- " * 60_000, "[" + "1," * 90_000 + "]",
    "? " * 10_000, "{" + "".join(f"k{n}: 1, " for n in range(30_000)) + "}", "a" * 2_000_000,
    "# " * 300_000, "'" + "a" * 400_000 + "'", "1" + "_" * 100_000, "1:" * 50_000,
    '"' + "\\u0041" * 50_000 + '"', f"{FOREIGN}.Thing", f"{{class_path: {FOREIGN}.Thing}}",
]  # fmt: skip
KINDS = {"text": (8, TEXTS, TEXTS), "attack": (23, ATTACKS, BOMBS)}
"""The row of the matrix, short texts in the place of values, and what one value may be instead."""
WORDS = st.text(max_size=4) | st.sampled_from(["class_path", "init_args", "r", "seed", "<<", "id"])
HELPS = {"--help", "-h", "--print_config", "--config"}


def cases(shared: Path, scale: float, names: list[str] | None = None) -> Iterator[Case]:
    """Batches of configurations of each kind for every program, each from a seed of its own."""
    count = max(1, round(CONFIGS_A_CASE * min(1.0, scale * CASES_OF_EACH)))
    for seed in range(max(1, round(CASES_OF_EACH * scale))):
        for name, kind in product(NAMES, KINDS):
            if names is None or name in names:
                strike = partial(parse_many, name, kind, seed, count)
                yield Case(KINDS[kind][0], name, f"{name}-{kind}-{seed}", strike)


def parse_many(name: str, kind: str, seed: int, count: int, folder: Path) -> Verdict:
    """What became of so many configurations in a process of its own."""
    process = server().Process(target=_parse_many, args=(name, kind, seed, count, folder))
    process.start()
    code = ended(process, 60 + 4 * MOST_SECONDS * count)
    found = [json.loads(line) for line in (folder / "results").read_text().splitlines()]
    for record in found:
        if record["fault"]:
            return bad(record["fault"], f"{record['argv']}: {record['said']}")
    if code != 0 or not found:
        ending = "hung" if code is None else f"exit {code}"
        return bad(ending, (folder / "begun").read_text())
    refused = sum(record["said"] is not None for record in found)
    return good(f"{'some' if refused < len(found) else 'all'} of {len(found)} refused")


def _parse_many(name: str, kind: str, seed: int, count: int, folder: Path) -> None:
    """Writes a line for each configuration, and beforehand which it is."""
    os.dup2(os.open(folder / "log", os.O_CREAT | os.O_WRONLY), 2)
    sys.path.insert(0, str(folder))
    (folder / f"{FOREIGN}.py").write_text("class Thing:\n    pass\n")
    names = runpy.run_path(str(SCRIPTS / f"{name}.py"))
    config_class = next(value for key, value in names.items() if key.endswith("Config"))
    shipped = ["--config", str(min((CONFIGS / name).glob("*.yaml")))]
    usual = parse(config_class, shipped)  # what is imported, and kept, once counts for none
    settings = hypothesis.settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    with open(folder / "results", "w") as results:

        def tried(command: list[str | bytes]) -> None:
            results.write(json.dumps(parse_one(config_class, folder, command)) + "\n")
            results.flush()

        given = hypothesis.given(commands(*KINDS[kind][1:], shipped, usual))
        hypothesis.seed(seed)(settings(given(tried)))()


def parse_one(config_class: type, folder: Path, command: list[str | bytes]) -> dict[str, Any]:
    """What became of a command; bytes in it are the content of a file."""
    argv = []
    for word in command:
        if isinstance(word, bytes):
            (folder / "config.yaml").write_bytes(word)
        argv.append(str(folder / "config.yaml") if isinstance(word, bytes) else word)
    shown = repr([word[:200] for word in command])[:900]
    (folder / "begun").write_text(shown)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    memory, began = _peak_bytes(), time.process_time()
    fault, said = None, None
    try:
        config = parse(config_class, argv)
        again = folder / "again.yaml"
        again.write_text(dump(config), encoding="utf-8", errors="surrogatepass")
        if dump(parse(config_class, ["--config", str(again)])) != dump(config):
            fault = "reads back as another"
    except ConfigError as error:
        said = str(error)
        fault = "not one line" if "\n" in said or len(said) > MOST_LINE else None
    except BaseException as error:  # noqa: BLE001  - nothing else may come out of it
        fault, said = "stack trace", repr(error)
    if (seconds := time.process_time() - began) > MOST_SECONDS:
        fault = fault or f"{seconds:.0f} s"
    if (grown := _peak_bytes() - memory) > MOST_BYTES:
        fault = fault or f"{grown >> 20} MiB"
    if sys.modules.pop(FOREIGN, None):
        fault = "imported"
    return {"fault": fault, "said": said and said[:400], "argv": shown}


def _peak_bytes() -> int:
    """The most bytes that this process had since its peak began anew."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


# --- commands --------------------------------------------------------------------------------


def commands(
    texts: list[str], longer: list[str], shipped: list[str], usual: Any
) -> st.SearchStrategy:
    """Words of a command, behind a configuration that is right, at times; bytes are of a file."""
    keys, values, none = [*_keys(type(usual))], _values(texts), st.just([])
    file = files(texts, longer, keys, values, dict(_flatten(to_dict(usual))))
    file = file.map(lambda content: ["--config", content])
    key = st.sampled_from(keys) | st.sampled_from(keys).map(lambda key: f"{key}.x") | WORDS
    text = values.map(_flow) | st.sampled_from(texts) | st.sampled_from(longer)
    pair = st.tuples(key, text, st.booleans()).map(
        lambda p: [f"--{p[0]}", p[1]] if p[2] else [f"--{p[0]}={p[1]}"]
    )
    words = st.lists(pair, min_size=1, max_size=2).map(
        lambda parts: [word for word in sum(parts, []) if word not in HELPS]
    )
    return st.tuples(none | st.just(shipped), file | none, words | none | none).map(
        lambda parts: sum(parts, [])
    )


def _values(texts: list[str]) -> st.SearchStrategy:
    """Any value that YAML can hold, with some of these texts in it."""
    numbers = st.integers() | st.floats() | st.sampled_from([-1, 0, 2**63, 10**400])
    scalars = (
        st.none() | st.booleans() | numbers | st.text(max_size=8) | st.sampled_from(texts)
        | st.dates() | st.datetimes() | st.binary(max_size=4)
    )  # fmt: skip
    keys = WORDS | st.integers() | st.none()
    return st.recursive(
        scalars,
        lambda part: st.lists(part, max_size=4) | st.dictionaries(keys, part, max_size=4),
        max_leaves=12,
    )


def files(
    texts: list[str], longer: list[str], keys: list[str], values: Any, usual: dict[str, Any]
) -> st.SearchStrategy:
    """Contents of a file: nested settings, at times cut or spliced, or a bomb somewhere."""
    right = st.sampled_from(sorted(usual.items(), key=str))
    settings = st.lists(
        st.tuples(st.sampled_from(keys), values) | right | right, min_size=1, max_size=4
    )
    nested = settings.map(dict).map(_nested)
    whole = nested.map(lambda value: yaml.dump(value, allow_unicode=True)) | nested.map(_flow)
    bombed = st.tuples(st.sampled_from(keys), st.sampled_from(longer)).map(_bombed)
    pieces = st.sampled_from([*texts, "\t", "\n", ": "])
    spliced = st.tuples(whole, st.integers(0, 10**6), pieces).map(_splice)
    encoded = st.one_of(whole, whole, spliced, bombed).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    )
    return encoded | whole.map(lambda text: text.encode("utf-16", "surrogatepass")) | st.binary()


def _nested(found: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as mappings in mappings; a value in the way stays there."""
    nested: dict[str, Any] = {}
    for key, value in found.items():
        inside, *names = nested, *key.split(".")
        for name in names[:-1]:
            inside = inside.setdefault(name, {}) if isinstance(inside, dict) else None
        if isinstance(inside, dict):
            inside[names[-1]] = value
    return nested


def _flow(value: Any) -> str:
    return yaml.dump(value, default_flow_style=True, allow_unicode=True, width=10**9).strip()


def _bombed(pair: tuple[str, str]) -> str:
    key, bomb = pair
    return "{" + ": {".join(key.split(".")) + ": " + bomb + "}" * (key.count(".") + 1)


def _splice(parts: tuple[str, int, str]) -> str:
    text, place, piece = parts
    place %= len(text) + 1
    return text[:place] + piece + text[place + 1 :]
