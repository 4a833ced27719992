"""What somebody might put into a file: code in pickles, bombs, names that lead elsewhere."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

MODULE = "canary_of_faults"
"""Of the code that must not be imported; there is one of this name beside the files."""

DEEP = 100_000


@dataclass(frozen=True)
class Trap:
    """A bad file.

    Attributes:
        put: writes it in the place of a good one; it may look into `outside`.
    """

    name: str
    put: Callable[[Path, Path], None]


@dataclass(frozen=True)
class _Runs:
    """Runs a command when it is unpickled."""

    command: str

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def traps(file: Path) -> Iterator[Trap]:
    """Those that fit a file by its name."""
    yield from (Trap(name, _content(make)) for name, make in ANYWHERE.items())
    yield from (Trap(name, put) for name, put in PLACES.items())
    for name, make in OF_KIND.get(file.suffix, {}).items():
        yield Trap(name, _content(make))
    for name, make in OF_NAME.get(file.name, {}).items():
        yield Trap(name, _changed(make))


def _content(make: Callable[[Path], bytes]) -> Callable[[Path, Path], None]:
    return lambda file, outside: file.write_bytes(make(outside)) and None


def _changed(make: Callable[[dict, Path], dict]) -> Callable[[Path, Path], None]:
    """The object in a JSON file with something added."""

    def put(file: Path, outside: Path) -> None:
        file.write_text(json.dumps(make(json.loads(file.read_bytes()), outside)))

    return put


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


def _numpy_pickle(outside: Path) -> bytes:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + _pickled(outside)


def _to_a_file(file: Path, outside: Path) -> None:
    file.unlink()
    file.symlink_to(outside / "secret.json")


def _to_nothing(file: Path, outside: Path) -> None:
    file.unlink()
    file.symlink_to(outside / "made")


def _to_a_folder(file: Path, outside: Path) -> None:
    """The folder that holds the file leads elsewhere."""
    import shutil

    folder = outside / "folder"
    shutil.copytree(file.parent, folder, dirs_exist_ok=True, symlinks=True)
    if (file.parent / "environment.json").exists():  # the run itself may lie anywhere
        return _to_a_file(file, outside)
    shutil.rmtree(file.parent)
    file.parent.symlink_to(folder)


def _temporary_name(file: Path, outside: Path) -> None:
    """Where the file will be written first, a link lies in wait."""
    file.with_name(f".{file.name}.tmp").symlink_to(outside / "secret.json")


def _pipe(file: Path, outside: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path, outside: Path) -> None:
    file.unlink()
    file.mkdir()


ANYWHERE = {
    "pickle": _pickled,
    "pickle in a zip": _zipped_pickle,
    "pickle in an array": _numpy_pickle,
    "nothing but zeros": lambda outside: bytes(1 << 20),
}
PLACES = {
    "link to a file": _to_a_file,
    "link to nothing": _to_nothing,
    "link in the place of its folder": _to_a_folder,
    "link under the temporary name": _temporary_name,
    "pipe": _pipe,
    "folder": _folder,
}

# --- by kind --------------------------------------------------------------------------------------


def _deep_json(outside: Path) -> bytes:
    return b'{"a":' * DEEP + b"1" + b"}" * DEEP


def _long_number(outside: Path) -> bytes:
    return b'{"schema_version": ' + b"9" * 100_000 + b"}"


def _names_outside(outside: Path) -> bytes:
    paths = ["../" * 20 + str(outside / "secret.json"), str(outside / "secret.json"), "../run.yaml"]
    files = {path: {"size": 2, "sha256": "0" * 64} for path in paths}
    return json.dumps({"digest": "", "manifest": {"schema_version": 1, "files": files}}).encode()


def _safetensors(header: bytes, length: int | None = None, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def _tensor(shape: list[int], offsets: list[int]) -> bytes:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    return _safetensors(json.dumps({"weight": entry}).encode(), body=bytes(16))


def _yaml_aliases(outside: Path) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(lines).encode()


def _yaml_code(outside: Path) -> bytes:
    return f"run: !!python/object/apply:os.system ['touch {outside}/executed']".encode()


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


def _template(text: str) -> Callable[[Path], bytes]:
    return lambda outside: text.replace("OUTSIDE", str(outside)).encode()


OF_KIND: dict[str, dict[str, Callable[[Path], bytes]]] = {
    ".json": {
        "deep nesting": _deep_json,
        "a number of 100,000 digits": _long_number,
        "a list": lambda outside: b"[1]",
        "a text": lambda outside: b'"x"',
        "names outside": _names_outside,
        "half a surrogate pair": lambda outside: rb'{"model_type": "\ud800", "a": "\ud800"}',
    },
    ".jsonl": {
        "deep nesting": lambda outside: _deep_json(outside) + b"\n",
        "a list": lambda outside: b"[1]\n",
        "values of other types": lambda outside: b'{"step": "x", "trial": [], "sha256": 1}\n',
    },
    ".manifest": {"deep nesting": _deep_json, "names outside": _names_outside},
    ".safetensors": {
        "a header of 2^63 bytes": lambda outside: _safetensors(b"{}", 2**63 - 1),
        "a header longer than the file": lambda outside: _safetensors(b"{}", 10_000),
        "a deep header": lambda outside: _safetensors(_deep_json(outside)),
        "a tensor of 2^62 numbers": lambda outside: _tensor([2**31, 2**31], [0, 16]),
        "a tensor behind the end": lambda outside: _tensor([4], [1 << 40, (1 << 40) + 16]),
        "offsets backwards": lambda outside: _tensor([4], [16, 0]),
    },
    ".yaml": {
        "code": _yaml_code,
        "aliases of aliases": _yaml_aliases,
        "deep nesting": lambda outside: b"[" * DEEP,
    },
    ".parquet": {"a gigabyte of rows": _parquet_bomb, "a pickled type": _parquet_pickle},
    ".jinja": {
        "attributes": _template("{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        "imports": _template(
            "{{ cycler.__init__.__globals__.os.system('touch OUTSIDE/executed') }}"
        ),
        "a file": _template("{% include 'OUTSIDE/secret.json' %}"),
        "a long loop": _template("{% for i in range(10 ** 9) %}{{ i }}{% endfor %}"),
        "loops in loops": _template(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
        ),
        "a long text": _template("{{ 'x' * (10 ** 12) }}"),
        "no end": _template("{% for"),
    },
}

# --- by name --------------------------------------------------------------------------------------


def _with_code(stored: dict, outside: Path) -> dict:
    """A model or tokenizer whose class is in a file beside it."""
    classes = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoModel"), f"{MODULE}.Evil")
    return stored | {
        "auto_map": classes | {"AutoTokenizer": [None, f"{MODULE}.Evil"]},
        "model_type": "evil", "tokenizer_class": "Evil", "architectures": ["Evil"],
    }  # fmt: skip


def _known_with_code(stored: dict, outside: Path) -> dict:
    """The same, of a kind that is known otherwise."""
    return stored | {"auto_map": _with_code({}, outside)["auto_map"]}


def _elsewhere(*names: str) -> Callable[[dict, Path], dict]:
    return lambda stored, outside: stored | {name: str(outside / "folder") for name in names}


OF_NAME: dict[str, dict[str, Callable[[dict, Path], dict]]] = {
    "config.json": {
        "code": _with_code,
        "code beside": _known_with_code,
        "huge sizes": lambda stored, outside: stored | {"vocab_size": 2**40, "hidden_size": 2**30},
        "an endless model": lambda stored, outside: stored | {"num_hidden_layers": 10**9},
        "negative sizes": lambda stored, outside: stored | {"num_attention_heads": -1},
        "another name": _elsewhere("_name_or_path", "name_or_path"),
    },
    "tokenizer_config.json": {
        "code": _with_code,
        "code beside": _known_with_code,
        "a template with attributes": lambda stored, outside: stored
        | {"chat_template": "{{ ''.__class__.__mro__ }}"},
        "files elsewhere": _elsewhere("tokenizer_file", "vocab_file", "name_or_path"),
    },
    "generation_config.json": {"code": lambda s, outside: s | {"custom_generate": str(outside)}},
    "adapter_config.json": {
        "code": lambda stored, outside: stored
        | {"auto_mapping": {"base_model_class": "Evil", "parent_library": MODULE}},
        "an endless expression": lambda stored, outside: stored
        | {"target_modules": "(.*)*(.*)*(.*)*(.*)*(.*)*(.*)*x"},
        "elsewhere": _elsewhere("base_model_name_or_path"),
    },
    "lactchain_adapter.json": {"elsewhere": _elsewhere("base", "base_seen_from_here")},
    "manifest.json": {
        "names outside": lambda stored, outside: json.loads(_names_outside(outside)),
    },
    "environment.json": {
        "code": lambda stored, outside: stored | {"imports": [MODULE]},
        "elsewhere": lambda stored, outside: stored | {"run_id": str(outside)},
    },
    "state.json": {
        "names of attributes": lambda s, outside: s | {"agent": {"parts": {"__class__": {}}}},
    },
    "trainer_state.json": {
        "huge steps": lambda stored, outside: stored | {"global_step": 10**30, "max_steps": -1},
        "callbacks": lambda stored, outside: stored
        | {"stateful_callbacks": {MODULE: {"args": {}, "attributes": {"__class__": 1}}}},
    },
}  # fmt: skip
