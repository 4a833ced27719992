"""Configurations that nobody would write, into `parse` of every program.

Each is a file or the words of a command. It is a configuration that survives being written, or a
`ConfigError` of one line, within seconds and little memory, and no module is imported for it.
"""

import json
import os
import re
import sys
import time
from collections.abc import Collection
from datetime import date, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import yaml
from script_setups import config_class

from fault_matrix.cases import Verdict, bad, good
from fault_matrix.processes import SCRIPTS, ended, server
from fault_matrix.programs import Program
from lactchain.config.parsing import _flatten, _keys, dump, parse, to_dict
from lactchain.config.shipped import CONFIGS
from lactchain.errors import ConfigError

A_CASE = 100
"""Configurations of a case, in one process."""
MOST_SECONDS, MOST_BYTES, MOST_LINE = 2.0, 200 * 2**20, 1_500
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
WORDS = ["class_path", "init_args", "r", "seed", "<<", "id", "", "é", "\u202e", ".", "-x"]
"""Names that are no key, or that mean something to a parser."""
VALUES = [
    None, True, False, 0, -1, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"), float("-inf"),
    date(1, 1, 1), datetime(9999, 12, 31, 23, 59), b"\x00\xff", "\x1b[31m", "漢🙂", "a\nb",
    [], {}, [[1, [None]], "x"], {"class_path": "x", "init_args": {"r": -1}}, {7: {None: [0.5]}},
]  # fmt: skip
"""What YAML can hold."""


def scripts(names: Collection[str] | None) -> dict[str, Program]:
    """Every script there is, also those that make no run."""
    found = sorted(path.stem for path in SCRIPTS.glob("*.py"))
    return {n: Program(n, n, lambda *_: None) for n in found if names is None or n in names}


def parse_many(
    texts: list[str], longer: list[str], program: Program, number: int, folder: Path
) -> Verdict:
    """What became of many configurations in a process of its own.

    Args:
        texts: what stands in the place of values; `longer`: what one of them may be instead.
    """
    begin, arguments = server().Process, (program.script, texts, longer, number, folder)
    process = begin(target=_parse_many, args=arguments)
    process.start()
    code = ended(process, 60 + 4 * MOST_SECONDS * A_CASE)
    found = [json.loads(line) for line in (folder / "results").read_text().splitlines()]
    for record in found:
        if record["fault"]:
            return bad(record["fault"], f"{record['argv']}: {record['said']}")
    if code != 0 or not found:
        ending = "hung" if code is None else f"exit {code}"
        return bad(ending, (folder / "begun").read_text())
    refused = sum(record["said"] is not None for record in found)
    return good(f"{'some' if refused < len(found) else 'all'} of {len(found)} refused")


parse_texts = partial(parse_many, TEXTS, TEXTS)
parse_attacks = partial(parse_many, ATTACKS, BOMBS)


def _parse_many(
    script: str, texts: list[str], longer: list[str], number: int, folder: Path
) -> None:
    """Writes a line for each configuration, and beforehand which it is."""
    os.dup2(os.open(folder / "log", os.O_CREAT | os.O_WRONLY), 2)
    sys.path.insert(0, str(folder))
    (folder / f"{FOREIGN}.py").write_text("class Thing:\n    pass\n")
    kind = config_class(script)
    shipped = ["--config", str(min((CONFIGS / script).glob("*.yaml")))]
    usual = parse(kind, shipped)  # what is imported, and kept, once counts for none
    drawn = Drawn(Random(f"{script} {texts} {number}"), texts, longer, usual)
    with open(folder / "results", "w") as results:
        for _ in range(A_CASE):
            found = parse_one(kind, folder, drawn.command(shipped))
            results.write(json.dumps(found) + "\n")
            results.flush()


def parse_one(kind: type, folder: Path, command: list[str | bytes]) -> dict[str, Any]:
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
        config, again = parse(kind, argv), folder / "again.yaml"
        again.write_text(dump(config), encoding="utf-8", errors="surrogatepass")
        if dump(parse(kind, ["--config", str(again)])) != dump(config):
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


class Drawn:
    """Commands that are drawn; `usual` is a configuration that is right."""

    def __init__(self, rng: Random, texts: list[str], longer: list[str], usual: Any) -> None:
        self.rng, self.texts = rng, [texts, longer, [*map(_flow, VALUES)]]
        self.keys, self.right = [*_keys(type(usual))], sorted(_flatten(to_dict(usual)), key=str)

    def command(self, shipped: list[str]) -> list[str | bytes]:
        """Words of a command, at times behind a configuration that is right."""
        file = ["--config", self.file()] if self.rng.random() < 0.6 else []
        pairs = [self.pair() for _ in range(self.rng.choice((0, 0, 1, 2) if file else (1, 2)))]
        return [*(shipped if self.rng.random() < 0.5 else []), *file, *sum(pairs, [])]

    def text(self) -> str:
        """In the place of a value."""
        return self.rng.choice(self.rng.choice(self.texts))

    def pair(self) -> list[str]:
        """A key and what it is set to, in one word or two."""
        key = self.rng.choice(self.keys)
        key = self.rng.choice([key, key, f"{key}.x", self.rng.choice(WORDS)])
        return self.rng.choice([[f"--{key}", self.text()], [f"--{key}={self.text()}"]])

    def file(self) -> bytes:
        """Nested settings, up to two of them wrong, at times cut or spliced; or any bytes."""
        rng, wrong = self.rng, {f"PLACE{n}": self.text() for n in range(self.rng.randint(0, 2))}
        settings = dict(rng.choices(self.right, k=3)) | {rng.choice(self.keys): n for n in wrong}
        text = yaml.dump(_nested(settings), default_flow_style=rng.random() < 0.5)
        for name, value in wrong.items():
            text = text.replace(name, value)
        if rng.random() < 0.3:
            place, piece = rng.randrange(len(text) + 1), rng.choice([self.text(), "\t", "\n", ": "])
            text = text[:place] + piece + text[place + 1 :]
        encoding = rng.choice(["utf-8"] * 5 + ["utf-16", ""])
        return text.encode(encoding, "surrogatepass") if encoding else rng.randbytes(9)


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
    text = yaml.dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
    return text.removesuffix("...\n").strip()
