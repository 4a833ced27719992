"""Runs: one folder each, and the same command continues it.

A run folder holds `config.yaml` (itself a valid `--config`), `environment.json`, `metrics.jsonl`,
whatever its script puts there, and `summary.json`, written last: a folder with it is finished.
`Run.open` goes on with a folder that is there; a training then resumes from its newest checkpoint
in `trainers.base.train`, classic agents in `baselines.state_files.resume`, work in files behind the
last one in `data.parquet.work_through`. `stages.stage_run.stage` skips a stage that is finished.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from lactchain.config.parsing import to_dict
from lactchain.errors import ConfigError, DataError, LactChainError
from lactchain.runs import distributed
from lactchain.runs.console import nothing_under_way
from lactchain.runs.folder import RECORDS, prepare_folder, redact
from lactchain.runs.process import refuse_unless_inexact
from lactchain.storage import files, manifests
from lactchain.storage.checkpoints import prune_checkpoints
from lactchain.storage.manifests import describe, is_run, verify_if_described, write_with_manifest

SECONDS_BETWEEN_NOTES = 10.0
"""How often a run notes how long it has worked, as it logs; a kill loses what came after."""

_open_runs: WeakSet["Run"] = WeakSet()
"""A pipeline, and the stage within it whose records tell that both work."""

log = logging.getLogger(__name__)


class Run(AbstractContextManager["Run"]):
    """One run folder, open for one group of processes; rank 0 writes, the others only read.

    Use it as a context manager, or call `finish`: both let go of the folder.

    Attributes:
        directory: the folder.
        id: equal for runs of equal configuration (but for harmless fields), in one folder where
            they build their own models. It stands in `environment.json`, and in the manifest of all
            that is written into the folder, so that nothing of another run is taken for this one's.
        keeps_checkpoints: whether those in it stay when it is finished.
        outcome: what a stage came to, or `finish` was given; None until then.
    """

    def __init__(self, directory: Path, about: Mapping[str, Any], lock: IO[str] | None) -> None:
        self.directory = directory
        self.id = about["run_id"]
        self.keeps_checkpoints = True
        self.outcome: dict[str, Any] | None = None
        self._lock = lock
        self._before = about.get("worked", {})
        self._began = time.perf_counter(), _cpu_seconds()
        self._noted = self._began[0]
        _open_runs.add(self)

    @classmethod
    def of(cls, config: Any) -> "Run":
        """Opens the folder that the config of a script names in `config.run`; see `open`."""
        distributed.timeout = timedelta(minutes=config.run.timeout_minutes)
        run = cls.open(config.run.run_dir, config)
        run.keeps_checkpoints = config.run.keep_checkpoints
        if run.finished and distributed.is_main():
            run._forget_checkpoints()  # a kill came between the summary and this
        return run

    @classmethod
    def open(cls, run_dir: str | Path, config: Any) -> "Run":
        """Creates the folder, or continues the run in it.

        Args:
            run_dir: the folder.
            config: the config dataclass of the run. Fields in `folder.HARMLESS`, at any
                depth, may differ from those in the folder; a difference is logged. Any other is
                refused.

        Raises:
            ConfigError: the folder belongs to another configuration or to no run at all, another
                process works in it, or not all processes see it.
            DiskError: the folder cannot be written or locked.
        """
        directory = Path(run_dir)
        settings = redact(to_dict(config))
        lock, refusal = None, None
        if distributed.is_main():
            try:
                lock = prepare_folder(directory, settings, config)
            except LactChainError as error:
                refusal = error
        if distributed.any_of(refusal is not None):
            raise refusal or ConfigError(f"{directory}: rank 0 cannot work in this folder")
        found = manifests.read_run_file(directory) if is_run(directory) else {}
        if distributed.any_of(found != distributed.of_main(found)):
            raise ConfigError(
                f"{directory.absolute()}: not all processes see what rank 0 writes there; expected "
                "one folder on a file system that all machines share, choose it with --run.run_dir"
            )
        run = cls(directory, found, lock)
        if run.finished and nothing_under_way():
            log.info("%s: finished, see summary.json in it", directory)
        return run

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets another process work in the folder."""
        if self._lock is not None:
            self._note_time()
            self._lock.close()

    def worked(self) -> dict[str, float]:
        """Seconds by the clock, and of CPU in all processes, since the run began: of all starts.

        All processes ask for it together.
        """
        return self._in_all_starts(distributed.total(_cpu_seconds() - self._began[1]))

    def _in_all_starts(self, cpu_seconds: float) -> dict[str, float]:
        wall_seconds = time.perf_counter() - self._began[0]
        now = {"wall_seconds": wall_seconds, "time/cpu_seconds": cpu_seconds}
        return {name: self._before.get(name, 0.0) + seconds for name, seconds in now.items()}

    def _note_time(self) -> None:
        """Keeps it for the next start, as if other processes had worked as much as this one."""
        self._noted = time.perf_counter()
        if self._lock is None or self._lock.closed or self.finished or not is_run(self.directory):
            return
        cpu = _cpu_seconds() - self._began[1]
        with suppress(OSError, LactChainError):  # no work ends for it
            self.note(worked=self._in_all_starts(cpu * distributed.world_size()))

    def path(self, name: str) -> Path:
        """Where a file or folder of this run is; the folder that holds it is made."""
        path = self.directory / name
        files.make_folder(path.parent)
        return path

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return (self.directory / "summary.json").exists()

    @property
    def told_to_end(self) -> bool:
        """Whether anybody has made a file `stop` in the folder, to end the run in good order."""
        return (self.directory / "stop").exists()

    @property
    def summary(self) -> dict[str, Any]:
        """What `finish` was given; `DataError` where it is damaged, or another run's."""
        return read_summary(self.directory)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json`, which marks the run as complete, and closes the run.

        All processes wait for it: none ends well where the run has not.
        """
        if distributed.is_main():
            content = files.to_json(summary, indent=2).encode()
            written = [path for name in RECORDS if (path := self.directory / name).is_file()]
            with files.disk_errors(self.directory):
                for path in written:
                    files.sync_file(path)
            self._note_time()
            beside = {path.name: describe(path.read_bytes()) for path in written}
            write_with_manifest(self.directory / "summary.json", content, {"beside": beside})
            self._forget_checkpoints()
        distributed.barrier()
        self.outcome = dict(summary)
        self.close()

    def _forget_checkpoints(self) -> None:
        """Removes what nobody goes on from any more, several times as large as the result.

        A run that keeps it removes what is left of those that it had removed.
        """
        folder = self.directory / "checkpoints"
        if not folder.is_dir() or folder.is_symlink():
            return
        prune_checkpoints(folder, keep=2 if self.keeps_checkpoints else 0)
        with suppress(OSError):  # what is kept, or what somebody else has put there, stays
            folder.rmdir()

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Appends a record of a step to `metrics.jsonl`; NaN and infinities become null."""
        if distributed.is_main():
            record = {"step": step, "time": round(time.time(), 3), **metrics}
            files.append_json_lines(self.directory / "metrics.jsonl", [record])
            for run in _open_runs:
                if time.perf_counter() - run._noted > SECONDS_BETWEEN_NOTES:
                    run._note_time()

    def log_once(self, metrics: Mapping[str, Any], step: int) -> Mapping[str, Any]:
        """Logs, unless that step has such a record, as of a repeated part; the record there is."""
        if distributed.is_main():
            for record in read_metrics(self.directory):
                if record["step"] == step and metrics.keys() <= record.keys():
                    return record
            self.log(metrics, step)
        return metrics

    @property
    def environment(self) -> dict[str, Any]:
        """What `environment.json` says of where the run works."""
        return manifests.read_run_file(self.directory)

    def note(self, **facts: Any) -> None:
        """Adds to `environment.json` what only a stage finds out; it stays when the run goes on."""
        if distributed.is_main():
            manifests.write_run_file(self.directory, self.environment | facts)

    def mark_metrics(self) -> dict[str, Any]:
        """Size and checksum of `metrics.jsonl` as it has reached the disk now: for a checkpoint."""
        path = self.directory / "metrics.jsonl"
        if not path.exists():
            return describe(b"")
        with files.disk_errors(path):
            files.sync_file(path)
            files.sync_folder(self.directory)
        return describe(path.read_bytes())

    def truncate_metrics(self, step: int, mark: Mapping[str, Any] | None = None) -> None:
        """Drops the records after a step, when a run resumes from there.

        `DataError` where those before it are not as `mark_metrics` found them, or are no JSON.
        """
        path = self.directory / "metrics.jsonl"
        if not distributed.is_main():
            return
        records = read_metrics(self.directory)  # first: no switch helps with what is no JSON
        content = path.read_bytes() if path.exists() else b""
        if mark is not None and describe(content[: mark["size"]]) != mark:
            refuse_unless_inexact(
                f"{path}: missing or damaged, its records up to step {step} are not those that "
                "were written; put a copy back"
            )
        kept = [record for record in records if record["step"] <= step]
        if len(kept) < len(records):
            files.write_json_lines(path, kept)


def _cpu_seconds() -> float:
    return time.process_time() + distributed.cpu_elsewhere


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`; a last line that a crash has cut is left out."""
    file = Path(run_dir) / "metrics.jsonl"
    records = files.read_json_lines(file)
    seen: dict[str, int] = {}
    for number, record in enumerate(records, start=1):
        if (first := seen.setdefault(repr(record), number)) != number:
            raise DataError(f"{file}: line {number} is line {first} again; remove one of them")
        kinds = {type(record.get("step")), type(record.get("time", 0))}
        whole = [abs(value) for value in record.values() if type(value) is int]
        if not kinds <= {int, float} or max(whole, default=0) > sys.float_info.max:
            raise DataError(
                f"{file}: line {number}: expected a step and a time, and numbers that a float can "
                "be; mend or remove it"
            )
    return records


def read_summary(run_dir: Path) -> dict[str, Any]:
    """What a run ended with; `DataError` where it, or one of its `RECORDS`, was changed."""
    path = run_dir / "summary.json"
    manifest = verify_if_described(path, "remove it and give the same command to finish again")
    for name, description in manifest.get("beside", {}).items():
        file = run_dir / name
        if not file.is_file() or describe(file.read_bytes()) != description:
            raise DataError(
                f"{file}: missing or damaged since the run ended; put a copy back, or remove "
                "summary.json beside it and give the same command, for metrics.jsonl with "
                "--inexact on the command line"
            )
    return files.read_json(path)


class OptionalTracker:
    """Hands calls on to the tracker of this name, until making it or one of the calls fails."""

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._name = name
        self._tracker = self._try(make)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._try(
            lambda: getattr(self._tracker, name)(*args, **kwargs)
        )

    def _try(self, call: Callable[[], Any]) -> Any:
        if vars(self).get("_tracker", call) is None:
            return None
        try:
            return call()
        except Exception as error:  # noqa: BLE001  - of whatever kind: it is no part of the run
            log.warning(
                "%s failed (%s: %s): the run goes on without it, and metrics.jsonl has all figures",
                *(self._name, type(error).__name__, error),
            )
            self._tracker = None
            return None
