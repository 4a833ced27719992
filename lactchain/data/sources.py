"""Data to learn from, ours or somebody else's: preference pairs and episodes, whatever the file.

What is not ours is a JSONL file, a parquet file or a folder of them, or a folder that Minari or
`datasets.Dataset.save_to_disk` wrote. Of a data set in splits it is the one called train. Preference
pairs have TRL's columns `prompt`, `chosen` and `rejected`, texts or conversations; where both answers
begin with the prompt it need not stand beside them ("implicit prompt"). An episode is a row of T
decisions:

| column | |
|---|---|
| observations | T + 1 texts: what each decision was asked with, and the last one; T will do where the episode terminated |
| completions | T texts |
| rewards | T numbers |
| terminated | whether the last state is terminal; else the episode was cut |
| success | optional: whether it ended well |
"""  # noqa: E501

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lactchain import plugins
from lactchain.data import parquet
from lactchain.data.preferences import read_pairs
from lactchain.data.trajectories import COLUMNS, from_foreign, plain_infos, read_trajectories
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State
from lactchain.errors import DataError
from lactchain.storage.files import parse_json_lines, read_json
from lactchain.storage.manifests import RUN_FILE, is_run, run_around
from lactchain.storage.results import result_of
from lactchain.types import Action, Conversation, PreferencePair, Trajectory

Row = Mapping[str, Any]

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json")
LAST_TURN = "\n\nAssistant:"
_DESCRIBES = re.compile(r"(dataset_(info|infos|dict)|state|metadata|.*config.*)\.json")
_SHARD = re.compile(r"-\d+-of-\d+.*")
_SPLIT = re.compile(
    "(?<![a-z])(train|training|validation|valid|dev|val|test|testing|eval|evaluation"
    "|held_?out|hold_?out)(?![a-z])",
    re.I,
)

log = logging.getLogger(__name__)

PAIR_COLUMNS = ("prompt", "chosen", "rejected")
EPISODE_COLUMNS = ("observations", "completions", "rewards", "terminated")
READ = {*PAIR_COLUMNS, *EPISODE_COLUMNS, "success"}


def open_pairs(path: str | Path, env: LanguageEnv | None = None) -> list[PreferencePair]:
    """Preference pairs of our files, or of any data set with TRL's columns; else a `DataError`.

    Args:
        env: to learn in: pairs in states that it holds back are a `DataError` as well.
    """
    place = result_of(path, "pairs")
    rows = _foreign_rows(place, "chosen_token_ids")
    if rows is None:
        pairs = read_pairs(place)
    else:
        pairs = [pair_of(row, f"{place}: row {i}") for i, row in enumerate(rows)]
    _check_some(pairs, place, "pairs")
    _check_practised(env, (pair.state for pair in pairs), path)
    return pairs


def open_trajectories(path: str | Path, env: LanguageEnv | None = None) -> list[Trajectory]:
    """Episodes of our files, of Minari, or of a data set with the columns of `EPISODE_COLUMNS`.

    Files of ours are held against their manifests, where these are still there. `DataError` names
    what is missing or damaged: a file, a column, a row that is no episode.

    Args:
        env: to learn in: decisions in states that it holds back are a `DataError` as well.
    """
    place = result_of(path, "trajectories")
    episodes = _episodes_in(place)
    _check_some(episodes, place, "episodes")
    _check_practised(env, (info.get("state") for e in episodes for info in e.infos[:-1]), path)
    return episodes


def _check_some(rows: Sequence[Any], place: Path, what: str) -> None:
    if not rows:
        raise DataError(f"{place}: expected {what} to learn from, found none; name other data")


def _episodes_in(path: Path) -> list[Trajectory]:
    if (path / "data" / "metadata.json").is_file():
        return plugins.required("minari", str(path)).read_minari(path)
    rows = _foreign_rows(path, "stop_reasons")
    if rows is None:
        return [episode for file in _files(path) for episode in _read_file(file)]
    if rows and rows[0].keys() >= set(COLUMNS):
        library = plugins.required("datasets", str(path))
        return library.from_dataset(library.saved_dataset(path))
    return [_episode(row, f"{path}: row {i}", i) for i, row in enumerate(rows)]


def _check_practised(
    env: LanguageEnv | None, states: Iterable[State | None], name: str | Path
) -> None:
    """Raises `DataError` if recorded decisions are in states that are held back, or may be.

    A state is None or empty where it is unknown; `name` is what the record is called.
    """
    if env is None or not env.held_back:
        return
    for state in states:
        if not state:
            raise DataError(
                f"{name}: expected records that tell the state of each decision, since some states"
                " are held back, got one that does not; set environment.held_back to null"
            )
        if state in env.held_back:
            raise DataError(
                f"{name}: expected no decision in a state that is held back, got one in {state};"
                " record it with the same environment.held_back"
            )


def _files(path: Path) -> list[Path]:
    """A file, or every `*.parquet` of a folder; of a data set those of its folders as well.

    What holds runs is no data set: files of many kinds are in their folders. Of each folder the
    numbered files must all be there.
    """
    found = _inside(path, "*.parquet")
    if not found or any(path.rglob(RUN_FILE)):
        return parquet.files(path)
    return [file for folder in {file.parent: 0 for file in found} for file in parquet.files(folder)]


def _inside(path: Path, pattern: str) -> list[Path]:
    """Files at any depth by name, but not in hidden folders: copies of editors lie there."""
    found = sorted(path.rglob(pattern))
    return [f for f in found if not any(p.startswith(".") for p in f.relative_to(path).parts)]


def _read_file(file: Path) -> list[Trajectory]:
    """A file that must have had a manifest is refused without it."""
    if _is_ours(file):
        return read_trajectories(file)
    return from_foreign(parquet.read_foreign(file, COLUMNS), file)


def _is_ours(file: Path) -> bool:
    """Whether a manifest vouches for it, or should: others beside have one, or it is of a run."""
    has_others = any(file.parent.glob("*-of-*.manifest"))
    return parquet.has_manifest(file) or has_others or run_around(file) is not None


def pair_of(row: Row, name: str) -> PreferencePair:
    """A preference pair of a row of TRL's columns; errors call the row `name`.

    Raises:
        DataError: naming the column that is missing, or not a text or a conversation.
    """
    _require(row, PAIR_COLUMNS, name, optional="prompt")
    read = {c: _spoken(row[c], f"{name}: {c}") for c in PAIR_COLUMNS if row.get(c) is not None}
    prompt, chosen, rejected = read.get("prompt"), read["chosen"], read["rejected"]
    if isinstance(chosen, str) and isinstance(rejected, str):
        if prompt is None:
            prompt, chosen, rejected = _parted(chosen, rejected, name)
        return PreferencePair(prompt, chosen, rejected)
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise DataError(f"{name}: expected two texts or two conversations, got one of each")
    before = chosen[:-1]
    if rejected[:-1] != before or not (before or prompt):
        raise DataError(f"{name}: expected one prompt before the last messages, got two or none")
    is_it = prompt is None or prompt == before or before == _asked(prompt)
    if before and not is_it:
        raise DataError(f"{name}: expected chosen to begin with the prompt, got another beginning")
    return PreferencePair(prompt or before, chosen[-1]["content"], rejected[-1]["content"])


def _asked(prompt: str | Conversation) -> Conversation:
    """The conversation that a prompt alone stands for."""
    return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt


def _parted(chosen: str, rejected: str, name: str) -> tuple[str, str, str]:
    """Prompt and answers of two dialogues in one text each, as in HH-RLHF (Bai et al. 2022)."""
    prompt, turn, answer = chosen.rpartition(LAST_TURN)
    if not turn or not rejected.startswith(prompt + turn):
        raise DataError(f"{name}: expected {', '.join(PAIR_COLUMNS)}, got no prompt")
    return prompt + turn, answer.strip(), rejected.removeprefix(prompt + turn).strip()


def _spoken(said: Any, name: str) -> str | Conversation:
    """A text, or a conversation of texts; errors call it `name`."""
    if isinstance(said, str):
        return said
    if not isinstance(said, list | tuple) or not said:
        raise DataError(f"{name}: expected a text or a conversation, got {_shown(said)}")
    for message in said:
        parts = (message.get("role"), message.get("content")) if isinstance(message, dict) else ()
        if not parts or not all(isinstance(part, str) for part in parts):
            raise DataError(
                f"{name}: expected messages of role and content, both texts, got {_shown(message)}"
            )
    return tuple({"role": m["role"], "content": m["content"]} for m in said)


def _episode(row: Row, name: str, number: int) -> Trajectory:
    _require(row, EPISODE_COLUMNS, name)
    for column, of, kind in (
        ("observations", str, "a list of texts"),
        ("completions", str, "a list of texts"),
        ("rewards", int | float, "a list of numbers"),
    ):
        cells = row[column]
        if not isinstance(cells, list | tuple) or not all(_is(cell, of) for cell in cells):
            raise DataError(f"{name}: {column}: expected {kind}, got {_shown(cells)}")
    terminated, success = (_flag(row, column, name) for column in ("terminated", "success"))
    observations, completions = tuple(row["observations"]), tuple(row["completions"])
    if terminated and len(observations) == len(completions):
        observations = (*observations, "")
    try:
        rewards = tuple(map(float, row["rewards"]))
        return Trajectory(
            env_id="",
            seed=number,
            observations=observations,
            actions=tuple(map(Action, completions)),
            rewards=rewards,
            infos=plain_infos(completions, rewards, success),
            terminated=terminated,
            truncated=not terminated,
        )
    except (ValueError, OverflowError) as error:
        raise DataError(f"{name} is no episode: {error}") from error


def _flag(row: Row, column: str, name: str) -> bool | None:
    """True or false, also as 1 and 0; None where there is none. The text "false" is neither."""
    value = row.get(column)
    if value is not None and not (isinstance(value, int) and value in (0, 1)):
        raise DataError(f"{name}: {column}: expected true or false, got {_shown(value)}")
    return None if value is None else bool(value)


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind; true and false are no numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return f"{str(value)[:60]!r} ({type(value).__name__})"


def _require(row: Row, columns: Sequence[str], name: str, optional: str = "") -> None:
    if missing := [c for c in columns if row.get(c) is None and c != optional]:
        if missing[0] in row:
            raise DataError(f"{name}: {missing[0]}: expected a value, got null; remove the row")
        raise DataError(
            f"{name}: expected {', '.join(columns)}, got {', '.join(row)}; {', '.join(missing)} "
            "missing, rename or add the columns"
        )


def _foreign_rows(path: Path, our_column: str) -> list[Row] | None:
    """The rows of a data set that is not ours; None where our own reader should look."""
    if is_run(path):
        return None
    if (path / "dataset_dict.json").is_file():
        path = path / _training_split(path, read_json(path / "dataset_dict.json").get("splits"))
    if (path / "state.json").is_file():
        return plugins.required("datasets", str(path)).saved_dataset(path).to_list()
    if path.is_file() and path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: expected a file that ends in {', '.join(SUFFIXES)}, or a folder of them; "
            "write each row as a JSON object on a line of its own"
        )
    files = _of_one_split(path, _rows_files(path))
    if not files or files[0].suffix.lower() in SUFFIXES[1:]:
        texts = [(file, file.read_bytes()) for file in files]
        rows = [row for file, content in texts for row in parse_json_lines(file, content)]
        return rows if files else None
    try:
        if our_column in pq.ParquetFile(files[0]).schema_arrow.names:
            return None
    except (pa.ArrowException, OSError) as error:
        if _is_ours(files[0]):
            return None
        raise DataError(f"{files[0]}: no parquet file that can be read ({error})") from error
    return [row for file in files for row in parquet.read_foreign(file, READ).to_pylist()]


def _rows_files(path: Path) -> list[Path]:
    """The files that hold the rows of a data set; what describes them is not among these."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    lines = [f for n in ("*.jsonl", "*.ndjson") for f in _inside(path, n) if f.is_file()]
    tables = _files(path) if _inside(path, "*.parquet") else []
    if lines and tables:
        named = f"{lines[0].name} and {tables[0].name}"
        raise DataError(f"{path}: expected files of one kind, got {named}")
    others = [file for file in sorted(path.glob("*.json")) if not _DESCRIBES.match(file.name)]
    return tables or lines or others


def _of_one_split(path: Path, files: Sequence[Path]) -> list[Path]:
    """Those of the split that is for training, where the names of files or folders tell splits."""
    splits: dict[str, list[Path]] = {}
    for file in files:
        name = _split_of(file.relative_to(path)) if path.is_dir() else ""
        splits.setdefault(name, []).append(file)
    return list(files) if len(splits) < 2 else splits[_training_split(path, splits)]


def _split_of(file: Path) -> str:
    """The split that a name tells, as data/train_prefs-00000-of-00001.parquet train_prefs."""
    names = [_SHARD.sub("", file.stem), *(part for part in reversed(file.parent.parts))]
    return next((name for name in names if _SPLIT.search(name)), "")


def _training_split(path: Path, splits: Any) -> str:
    """The one that is for training, or the only one; `DataError` where neither is."""
    names = sorted(splits) if isinstance(splits, Iterable) else []
    if len(names) == 1:
        return names[0]
    if training := [name for name in names if name in ("train", "training")]:
        left = ", ".join(name or "others" for name in names if name != training[0])
        log.info("%s: the split %s is read, %s is not", path, training[0], left)
        return training[0]
    raise DataError(
        f"{path}: expected one split, got {', '.join(name or 'others' for name in names)}; give the"
        " file or the folder of one"
    )
