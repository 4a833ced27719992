"""What somebody might put into a file: code in pickles, bombs, names that lead elsewhere."""

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fault_matrix.digests import CANARY

DEEP = 100_000

Put = Callable[[Path, Path], object]
"""Writes a bad file in the place of a good one; it may lead into the folder `outside`."""
Made = bytes | str | dict
Content = Made | Callable[[Path], Made]
"""Of a bad file: in a text OUTSIDE stands for that folder; a dict is added to a JSON object."""


@dataclass(frozen=True)
class _Runs:
    """Runs a command when it is unpickled."""

    command: str

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def traps(file: Path) -> Iterator[tuple[str, Put]]:
    """Those that fit a file by its name, and what each is called."""
    yield from PLACES.items()
    made = ANYWHERE | OF_KIND.get(file.suffix, {}) | OF_NAME.get(file.name, {})
    for name, content in made.items():
        yield name, partial(_put, content)


def _put(content: Content, file: Path, outside: Path) -> None:
    made = content(outside) if callable(content) else content
    if isinstance(made, dict):
        made = json.dumps(json.loads(file.read_bytes()) | made)
    if isinstance(made, str):
        made = made.replace("OUTSIDE", str(outside)).encode()
    file.write_bytes(made)


# --- in the place of any file ---------------------------------------------------------------------


def _pickled(outside: Path) -> bytes:
    return pickle.dumps(_Runs(f"touch {outside / 'executed'}"))


def _zipped_pickle(outside: Path) -> bytes:
    """As torch.save writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", _pickled(outside))
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
    return buffer.getvalue()


def _link(name: str) -> Put:
    return lambda file, outside: (file.unlink(), file.symlink_to(outside / name))


def _to_a_folder(file: Path, outside: Path) -> None:
    """The folder that holds the file leads elsewhere."""
    folder = outside / "folder"
    shutil.copytree(file.parent, folder, dirs_exist_ok=True, symlinks=True)
    if (file.parent / "environment.json").exists():  # the run itself may lie anywhere
        _link("secret.json")(file, outside)
        return
    shutil.rmtree(file.parent)
    file.parent.symlink_to(folder)


def _temporary_name(file: Path, outside: Path) -> None:
    """Where the file will be written first, a link lies in wait."""
    file.with_name(f".{file.name}.tmp").symlink_to(outside / "secret.json")


ANYWHERE: dict[str, Content] = {
    "pickle": _pickled,
    "pickle in a zip": _zipped_pickle,
    "nothing but zeros": bytes(1 << 20),
}
PLACES: dict[str, Put] = {
    "link to a file": _link("secret.json"),
    "link to nothing": _link("made"),
    "link in the place of its folder": _to_a_folder,
    "link under the temporary name": _temporary_name,
    "pipe": lambda file, outside: (file.unlink(), os.mkfifo(file)),
    "folder": lambda file, outside: (file.unlink(), file.mkdir()),
}

# --- by kind --------------------------------------------------------------------------------------

_DEEP_JSON = '{"a":' * DEEP + "1" + "}" * DEEP


def _outside_names(outside: Path) -> dict:
    paths = ["../" * 20 + str(outside / "secret.json"), str(outside / "secret.json"), "../run.yaml"]
    files = {path: {"size": 2, "sha256": "0" * 64} for path in paths}
    return {"digest": "", "manifest": {"schema_version": 1, "files": files}}


def _names_outside(outside: Path) -> str:
    return json.dumps(_outside_names(outside))


def _safetensors(header: str, length: int = 0) -> bytes:
    return struct.pack("<Q", length or len(header)) + header.encode() + bytes(16)


def _tensor(shape: list[int], offsets: list[int]) -> bytes:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    return _safetensors(json.dumps({"weight": entry}))


_ALIASES = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
_ALIASES += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=True)
    return buffer.getvalue()


def _parquet_bomb(outside: Path) -> bytes:
    """A few kilobytes that stand for a gigabyte."""
    indices = pa.array([0], pa.int32()).take(pa.array([0] * 2_000_000, pa.int32()))
    text = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 500]))
    return _parquet(pa.table({"states": text, "kind": text}))


def _parquet_pickle(outside: Path) -> bytes:
    """A column of a type that old versions of arrow unpickled."""
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": _pickled(outside),
    }
    field = pa.field("seed", pa.int64(), metadata=metadata)
    return _parquet(pa.table([pa.array([1, 2])], schema=pa.schema([field])))


OF_KIND: dict[str, dict[str, Content]] = {
    ".json": {
        "deep nesting": _DEEP_JSON,
        "a number of 100,000 digits": '{"schema_version": ' + "9" * 100_000 + "}",
        "a list": "[1]",
        "a text": '"x"',
        "names outside": _names_outside,
        "half a surrogate pair": r'{"model_type": "\ud800", "a": "\ud800"}',
    },
    ".jsonl": {
        "deep nesting": _DEEP_JSON + "\n",
        "a list": "[1]\n",
        "values of other types": '{"step": "x", "trial": [], "sha256": 1}\n',
    },
    ".manifest": {"deep nesting": _DEEP_JSON, "names outside": _names_outside},
    ".safetensors": {
        "a header of 2^63 bytes": _safetensors("{}", 2**63 - 1),
        "a header longer than the file": _safetensors("{}", 10_000),
        "a deep header": _safetensors(_DEEP_JSON),
        "a tensor of 2^62 numbers": _tensor([2**31, 2**31], [0, 16]),
        "a tensor behind the end": _tensor([4], [1 << 40, (1 << 40) + 16]),
        "offsets backwards": _tensor([4], [16, 0]),
    },
    ".yaml": {
        "code": "run: !!python/object/apply:os.system ['touch OUTSIDE/executed']",
        "aliases of aliases": "\n".join(_ALIASES),
        "deep nesting": "[" * DEEP,
    },
    ".parquet": {"a gigabyte of rows": _parquet_bomb, "a pickled type": _parquet_pickle},
    ".jinja": {
        "attributes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "imports": "{{ cycler.__init__.__globals__.os.system('touch OUTSIDE/executed') }}",
        "a file": "{% include 'OUTSIDE/secret.json' %}",
        "a long loop": "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}",
        "loops in loops": "{% for i in range(99999) %}" * 2 + "{% endfor %}" * 2,
        "a long text": "{{ 'x' * (10 ** 12) }}",
        "no end": "{% for",
    },
}

# --- by name --------------------------------------------------------------------------------------

_CLASSES = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoModel"), f"{CANARY}.Evil")
_KNOWN = {"auto_map": _CLASSES | {"AutoTokenizer": [None, f"{CANARY}.Evil"]}}
"""A model or tokenizer of a known kind, whose class is in a file beside it."""
_UNKNOWN = _KNOWN | {"model_type": "evil", "tokenizer_class": "Evil", "architectures": ["Evil"]}


def _elsewhere(*names: str) -> Content:
    return lambda outside: {name: str(outside / "folder") for name in names}


OF_NAME: dict[str, dict[str, Content]] = {
    "config.json": {
        "code": _UNKNOWN,
        "code beside": _KNOWN,
        "huge sizes": {"vocab_size": 2**40, "hidden_size": 2**30},
        "an endless model": {"num_hidden_layers": 10**9},
        "negative sizes": {"num_attention_heads": -1},
        "another name": _elsewhere("_name_or_path", "name_or_path"),
    },
    "tokenizer_config.json": {
        "code": _UNKNOWN,
        "code beside": _KNOWN,
        "a template with attributes": {"chat_template": "{{ ''.__class__.__mro__ }}"},
        "files elsewhere": _elsewhere("tokenizer_file", "vocab_file", "name_or_path"),
    },
    "generation_config.json": {"code": lambda outside: {"custom_generate": str(outside)}},
    "adapter_config.json": {
        "code": {"auto_mapping": {"base_model_class": "Evil", "parent_library": CANARY}},
        "an endless expression": {"target_modules": "(.*)*" * 6 + "x"},
        "elsewhere": _elsewhere("base_model_name_or_path"),
    },
    "lactchain_adapter.json": {"elsewhere": _elsewhere("base", "base_seen_from_here")},
    "manifest.json": {"more names outside": _outside_names},
    "environment.json": {
        "code": {"imports": [CANARY]},
        "elsewhere": lambda outside: {"run_id": str(outside)},
    },
    "state.json": {"names of attributes": {"agent": {"parts": {"__class__": {}}}}},
    "trainer_state.json": {
        "huge steps": {"global_step": 10**30, "max_steps": -1},
        "callbacks": {"stateful_callbacks": {CANARY: {"args": {}, "attributes": {"__class__": 1}}}},
    },
}
