"""Episodes in Minari's arrow format, out and in.

What is written here, `minari.load_dataset(dataset_id)` reads once MINARI_DATASETS_PATH is the
folder, and what Minari wrote with `data_format="arrow"` (or "parquet") is read here, as long as
observations and actions are text. Minari itself is not needed: it writes an episode at a time and
measures the whole folder after each, so that ten thousand take it hours.

    FOLDER/<dataset id>/data/metadata.json          spaces, counts, environment; written last
    FOLDER/<dataset id>/data/<episode>/part-0.arrow T + 1 rows; in the last one, what belongs to a
                                                    step is padding
    FOLDER/<dataset id>/data/<episode>/metadata.json

Beside Minari's own columns, `infos` has what a `Trajectory` holds and Minari does not know: `info`
and `action` (token ids, log-probabilities, stop reason) as JSON.
"""

import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium.envs.registration import EnvSpec

from lactchain.data.parquet import encode_json
from lactchain.data.trajectories import plain_infos
from lactchain.errors import ConfigError, DataError
from lactchain.storage.files import disk_errors, read_json, write_json
from lactchain.types import Action, Trajectory

DATASET_ID = re.compile(r"([-_\w]+/)*[-_\w]+-v\d+")
"""What Minari calls a data set: names between slashes, and a version."""

MINARI_VERSION = "0.5.4"
"""The version of Minari whose layout this is."""

METADATA = "metadata.json"
KINDS = {
    "observations": (str, "texts"),
    "actions": (str, "texts"),
    "rewards": (int | float, "numbers"),
    "terminations": (bool, "true or false"),
    "truncations": (bool, "true or false"),
    "infos": (dict | None, "mappings, or none"),
}
"""Columns of an episode, and what their values are."""


def write_minari(
    folder: str | Path,
    dataset_id: str,
    trajectories: Sequence[Trajectory],
    *,
    env_spec: EnvSpec | None = None,
    description: str = "",
) -> Path:
    """Writes a dataset; returns its own folder, `folder/dataset_id`.

    Args:
        dataset_id: such as `maze/double-t-v0`.
        env_spec: what `recover_environment` makes.

    Raises:
        ConfigError: the id is not of Minari's form.
        DataError: a text is no valid Unicode, which Arrow's strings cannot hold.
    """
    if not DATASET_ID.fullmatch(dataset_id):
        raise ConfigError(
            f"dataset_id: expected names of letters, digits, _ and - between slashes, and -v0 or "
            f"another version behind, got {dataset_id!r}"
        )
    path = Path(folder) / dataset_id
    data = path / "data"
    with disk_errors(data):
        data.mkdir(parents=True, exist_ok=True)
        (data / METADATA).unlink(missing_ok=True)
    for index, trajectory in enumerate(trajectories):
        _write_episode(data / str(index), index, trajectory)
    metadata = {
        "dataset_id": dataset_id,
        "minari_version": MINARI_VERSION,
        "data_format": "arrow",
        "jpeg_encoding": True,
        "total_episodes": len(trajectories),
        "total_steps": sum(map(len, trajectories)),
        "observation_space": _text_space(text for t in trajectories for text in t.observations),
        "action_space": _text_space(a.text for t in trajectories for a in t.actions),
        "algorithm_name": ", ".join(sorted({t.policy for t in trajectories})),
        "description": description,
    }
    if env_spec is not None:
        metadata["env_spec"] = env_spec.to_json()
    write_json(data / METADATA, metadata)
    return path


def read_minari(path: str | Path) -> list[Trajectory]:
    """Reads a dataset of text, whoever wrote it, from its own folder.

    Where nobody kept more than Minari knows, each utterance counts as one executed action, and
    nothing is known of success.

    Raises:
        DataError: naming the file that is missing or damaged, or the space that is not text.
    """
    data = Path(path) / "data"
    metadata = read_json(data / METADATA)
    try:
        count, data_format, env_id = _overview(metadata)
    except KeyError as error:
        raise DataError(f"{data / METADATA}: {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise DataError(f"{data / METADATA}: {error}") from error
    return [_read_episode(data / str(i), data_format, env_id) for i in range(count)]


def _write_episode(folder: Path, index: int, trajectory: Trajectory) -> None:
    try:
        table = _episode_table(trajectory)
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise DataError(f"trajectory {index} (seed {trajectory.seed}): {error}") from error
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    about = {
        "id": index,
        "total_steps": len(trajectory),
        "seed": trajectory.seed,
        "env_id": trajectory.env_id,
        "policy": trajectory.policy,
    }
    with disk_errors(folder):  # nobody reads these before the data set's own metadata is there
        folder.mkdir(exist_ok=True)
        (folder / "part-0.arrow").write_bytes(sink.getvalue())
        (folder / METADATA).write_text(json.dumps(about))


def _episode_table(trajectory: Trajectory) -> pa.Table:
    """The T + 1 rows of an episode."""
    steps, actions = len(trajectory), trajectory.actions
    kept = [
        {"token_ids": a.token_ids, "logprobs": a.logprobs, "stop_reason": a.stop_reason}
        for a in actions
    ]
    infos = [
        {"info": encode_json(info), "action": encode_json(action)}
        for info, action in zip(trajectory.infos, [*kept, {}], strict=True)
    ]
    ended = np.arange(steps + 1) == steps - 1
    columns = {
        "observations": pa.array(trajectory.observations, pa.string()),
        "actions": pa.array([*(action.text for action in actions), None], pa.string()),
        "rewards": pa.array([*trajectory.rewards, 0.0], pa.float64()),
        "terminations": pa.array(ended & trajectory.terminated),
        "truncations": pa.array(ended & trajectory.truncated),
        "infos": pa.array(infos),
    }
    return pa.table(columns)


def _read_episode(folder: Path, data_format: str, env_id: str) -> Trajectory:
    import pyarrow.dataset as ds  # it brings pandas

    about = read_json(folder / METADATA)
    files = sorted(str(file) for file in folder.glob(f"*.{data_format}"))
    if not files:
        raise DataError(f"{folder}: expected a file *.{data_format}, found none")
    try:
        stored = ds.dataset(files, format=data_format)
        columns = stored.to_table([n for n in KINDS if n in stored.schema.names]).to_pydict()
        actions, rewards = columns["actions"][:-1], columns["rewards"][:-1]
        _check(columns | {"actions": actions, "rewards": rewards})
        seed, told = about.get("seed") or 0, [about.get(n, "") for n in ("env_id", "policy")]
        if type(seed) is not int or seed < 0 or not all(isinstance(text, str) for text in told):
            raise TypeError(f"{METADATA}: expected a seed from 0 on, and texts, got {about}")
        terminated = any(columns["terminations"][:-1])
        infos, kept = _infos(columns)
        return Trajectory(
            env_id=about.get("env_id", env_id),
            seed=seed,
            observations=tuple(columns["observations"]),
            actions=tuple(Action(text, **k) for text, k in zip(actions, kept, strict=True)),
            rewards=tuple(rewards),
            infos=infos,
            terminated=terminated,
            truncated=any(columns["truncations"][:-1]),
            policy=about.get("policy", ""),
        )
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: damaged, or not of Minari's layout: {error}") from error


def _check(columns: Mapping[str, list[Any]]) -> None:
    """Refuses with a `TypeError` what is not of its column's kind: "false" is no truth value."""
    for name, (kind, told) in KINDS.items():
        values = columns.get(name, ()) if name == "infos" else columns[name]
        if strange := [value for value in values if not isinstance(value, kind)]:
            raise TypeError(f"{name}: expected {told}, got {strange[0]!r}")


def _infos(
    columns: Mapping[str, list[Any]],
) -> tuple[tuple[Mapping[str, Any], ...], list[dict[str, Any]]]:
    """The T + 1 infos of an episode, and beside the text of its T actions what else is known."""
    rows = columns.get("infos") or [{}]
    if (rows[0] or {}).keys() >= {"info", "action"}:
        infos, actions = ([json.loads(row[name]) for row in rows] for name in ("info", "action"))
        if not all(isinstance(told, dict) for told in (*infos, *actions)):
            raise TypeError("infos: expected JSON objects, got something else")
        lists = [{k: v if isinstance(v, str) else tuple(v) for k, v in a.items()} for a in actions]
        return tuple(infos), lists[:-1]
    texts, rewards = columns["actions"][:-1], columns["rewards"][:-1]
    return plain_infos(texts, rewards, None), [{}] * len(texts)


def _overview(metadata: Mapping[str, Any]) -> tuple[int, str, str]:
    """How many episodes there are, in which format, and of which environment."""
    for name in ("observation_space", "action_space"):
        kind = json.loads(metadata[name])["type"]
        if kind != "Text":
            raise ValueError(f"{name}: expected a Text space, got {kind}")
    count, data_format = metadata["total_episodes"], metadata["data_format"]
    if data_format not in ("arrow", "parquet"):
        raise ValueError(f"data_format: expected arrow or parquet, got {data_format!r}")
    if type(count) is not int or count < 1:
        raise ValueError(f"total_episodes: expected at least 1, got {count!r}")
    spec = metadata.get("env_spec")
    name = metadata["dataset_id"] if spec is None else json.loads(spec)["id"]
    if not isinstance(name, str):
        raise ValueError(f"expected the name of a data set or an environment, got {name!r}")
    return count, data_format, name


def _text_space(texts: Iterable[str]) -> str:
    """A space that holds the texts, as Minari writes spaces."""
    texts = list(texts)
    longest = max(map(len, texts), default=1) or 1
    charset = "".join(sorted({*string.printable}.union(*texts)))
    space = {"type": "Text", "max_length": longest, "min_length": 0, "charset": charset}
    return json.dumps(space)
