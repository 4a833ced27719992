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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import hypothesis
import yaml
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from fault_matrix.cases import Case, Verdict
from fault_matrix.programs import SCRIPTS, _preloaded, ended
from lactchain.config import _flatten, _keys, dump, parse, to_dict
from lactchain.errors import ConfigError
from lactchain.shipped import CONFIGS

TITLE = "configurations that nobody would write"
CONFIGS_A_CASE, CASES_OF_EACH = 100, 5
MOST_SECONDS, MOST_BYTES, MOST_LINE = 2.0, 200 * 2**20, 1_500
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
FOREIGN = "foreign_code"

TEXTS = (
    "", "null", "~", "1e-5", "{x}", "{", "[", "- a", "a: b", "*a", "&a", "!!int x", "\x00",
    "\ud800", "\u202e", "1:30", "0o7", "%s", "-", "--", "--help ", "True", ".nan",
)  # fmt: skip
"""What somebody may have typed, or a program may have spoiled."""
ATTACKS = (
    "!!python/name:os", f"{FOREIGN}.Thing", f"{FOREIGN}:World-v0",
    f"{{class_path: {FOREIGN}.Thing}}", "/etc/passwd", "../..", "<script>", "[bold]",
    "http://u:p@h/", "x" * 5_000, "[" * 5_000, "9" * 5_000,
)  # fmt: skip
"""What somebody may have written on purpose."""
NUMBERS = st.integers() | st.floats() | st.sampled_from([-1, 0, 2**63, 10**400])
WORDS = st.text(max_size=4) | st.sampled_from(["class_path", "init_args", "r", "seed", "<<", "id"])


def _values(texts: Sequence[str]) -> st.SearchStrategy:
    """Any value that YAML can hold, with some of these texts in it."""
    scalars = (
        st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(texts)
        | st.dates() | st.datetimes() | st.binary(max_size=4)
    )  # fmt: skip
    keys = WORDS | st.integers() | st.none()
    return st.recursive(
        scalars,
        lambda part: st.lists(part, max_size=4) | st.dictionaries(keys, part, max_size=4),
        max_leaves=12,
    )


def _bombs() -> list[str]:
    letters = "abcdefghij"
    lists = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}], " for a, b in pairwise(letters))
    merges = "".join(
        f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}, " for a, b in pairwise(letters)
    )
    return [
        "{a: &a [x, x, x, x], " + lists + "}", "{a: &a {x: 1}, " + merges + "}", "&a [*a]",
        "[" * 60_000, "{a: " * 60_000, "- " * 60_000, "[" + "1," * 90_000 + "]", "? " * 10_000,
        "{" + "".join(f"k{n}: 1, " for n in range(30_000)) + "}", "a" * 2_000_000, "# " * 300_000,
        "'" + "a" * 400_000 + "'", "1" + "_" * 100_000, "1:" * 50_000,
        '"' + "\\u0041" * 50_000 + '"', f"{FOREIGN}.Thing", f"{{class_path: {FOREIGN}.Thing}}",
    ]  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of configurations, by what stands in them.

    Attributes:
        row: of the matrix.
        texts: short ones, of which some are in the place of values.
        bombs: long ones, of which one may be somewhere.
    """

    row: int
    texts: tuple[str, ...]
    bombs: tuple[str, ...]


KINDS = {"text": Kind(8, TEXTS, TEXTS), "attack": Kind(23, ATTACKS, tuple(_bombs()))}


def cases(shared: Path, scale: float) -> Iterator[Case]:
    """Batches of configurations of each kind for every program, each from a seed of its own."""
    number = max(1, round(CASES_OF_EACH * scale))
    count = max(1, round(CONFIGS_A_CASE * min(1.0, scale * CASES_OF_EACH)))
    for seed in range(number):
        for name, kind in product(NAMES, KINDS):
            strike = partial(parse_many, name, kind, seed, count)
            yield Case(KINDS[kind].row, name, f"{name}-{kind}-{seed}", strike)


def parse_many(name: str, kind: str, seed: int, count: int, folder: Path) -> Verdict:
    """What became of so many configurations in a process of its own."""
    process = _preloaded().Process(target=_parse_many, args=(name, kind, seed, count, folder))
    process.start()
    code = ended(process, 60 + 4 * MOST_SECONDS * count)
    found = [json.loads(line) for line in (folder / "results").read_text().splitlines()]
    bad = [record for record in found if record["fault"]]
    if bad:
        return Verdict(False, bad[0]["fault"], f"{bad[0]['argv']}: {bad[0]['said']}"[:800])
    if code != 0 or not found:
        last = (folder / "begun").read_text()[:600]
        return Verdict(False, "hung" if code is None else f"exit {code}", last)
    refused = sum(record["said"] is not None for record in found)
    share = "some" if refused < len(found) else "all"
    return Verdict(True, f"{share} of {len(found)} refused", "")


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

        @hypothesis.seed(seed)
        @settings
        @hypothesis.given(commands(KINDS[kind], shipped, usual))
        def tried(command: list[str | bytes]) -> None:
            _parse_one(config_class, folder, results, command)

        tried()


def _parse_one(config_class: type, folder: Path, results: Any, command: list[str | bytes]) -> None:
    argv = _written(command, folder)
    shown = [word[:200] for word in argv] + [repr(part)[:300] for part in command[1::2]]
    (folder / "begun").write_text(repr(shown))
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
        if "\n" in said or len(said) > MOST_LINE:
            fault = "not one line"
    except BaseException as error:  # noqa: BLE001  - nothing else may come out of it
        fault, said = "stack trace", repr(error)
    if (seconds := time.process_time() - began) > MOST_SECONDS:
        fault = fault or f"{seconds:.0f} s"
    if (grown := _peak_bytes() - memory) > MOST_BYTES:
        fault = fault or f"{grown >> 20} MiB"
    if sys.modules.pop(FOREIGN, None):
        fault = "imported"
    record = {"fault": fault, "said": said and said[:400], "argv": repr(shown)[:900]}
    results.write(json.dumps(record) + "\n")
    results.flush()


def _peak_bytes() -> int:
    """The most bytes that this process had since its peak began anew."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


# --- commands --------------------------------------------------------------------------------


def commands(kind: Kind, shipped: list[str], usual: Any) -> st.SearchStrategy[list[str | bytes]]:
    """Words of a command, behind a configuration that is right, at times; bytes are of a file."""
    keys = [*_keys(type(usual))]
    none: st.SearchStrategy[list] = st.just([])
    given_file = files(kind, keys, dict(_flatten(to_dict(usual)))).map(
        lambda file: ["--config", file]
    )
    parts = st.tuples(none | st.just(shipped), given_file | none, words(kind, keys) | none | none)
    return parts.map(lambda parts: [word for part in parts for word in part])


def words(kind: Kind, keys: list[str]) -> st.SearchStrategy[list[str]]:
    """One or two keys with a value each, as words that a command may have."""
    key = st.sampled_from(keys) | st.sampled_from(keys).map(lambda key: f"{key}.x") | WORDS
    strange = st.sampled_from(kind.texts) | st.sampled_from(kind.bombs)
    text = _values(kind.texts).map(_flow) | strange
    pair = st.tuples(key, text).map(lambda p: [f"--{p[0]}", p[1]])
    joined = st.tuples(key, text).map(lambda p: [f"--{p[0]}={p[1]}"])
    return st.lists(pair | joined, min_size=1, max_size=2).map(
        lambda parts: [word for part in parts for word in part if word not in HELPS]
    )


HELPS = {"--help", "-h", "--print_config", "--config"}


def files(kind: Kind, keys: list[str], usual: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Contents of a file: nested settings, at times cut or spliced, or a bomb somewhere."""
    odd = st.tuples(st.sampled_from(keys), _values(kind.texts))
    right = st.sampled_from(sorted(usual.items(), key=str))
    found = st.lists(odd | right | right, min_size=1, max_size=4).map(dict).map(_nested)
    texts = st.one_of(found.map(_block), found.map(_flow))
    bombed = st.tuples(st.sampled_from(keys), st.sampled_from(kind.bombs)).map(_bombed)
    pieces = st.sampled_from([*kind.texts, "\t", "\n", ": "])
    spliced = st.tuples(texts, st.integers(0, 10**6), pieces)
    encoded = st.one_of(texts, texts, spliced.map(_splice), bombed).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    )
    return encoded | texts.map(lambda text: text.encode("utf-16", "surrogatepass")) | st.binary()


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


def _block(value: Any) -> str:
    return yaml.dump(value, allow_unicode=True)


def _flow(value: Any) -> str:
    return yaml.dump(value, default_flow_style=True, allow_unicode=True, width=10**9).strip()


def _bombed(pair: tuple[str, str]) -> str:
    key, bomb = pair
    return "{" + ": {".join(key.split(".")) + ": " + bomb + "}" * (key.count(".") + 1)


def _splice(parts: tuple[str, int, str]) -> str:
    text, place, piece = parts
    place %= len(text) + 1
    return text[:place] + piece + text[place + 1 :]


def _written(command: list[str | bytes], folder: Path) -> list[str]:
    """The words of a command, with contents of files written."""
    argv = []
    for word in command:
        if isinstance(word, bytes):
            (folder / "config.yaml").write_bytes(word)
            word = str(folder / "config.yaml")
        argv.append(word)
    return argv
