"""Files and checkpoints are old, new or whole, whenever a process is killed or a disk is full."""

import builtins
import errno
import io
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file
from test_checkpoints import make_checkpoint

from lactchain import DiskError, Run, RunConfig
from lactchain.models.tiny import build_tiny_tokenizer
from lactchain.search.evolution import Evolution, Individual, record_generation
from lactchain.search.settings import EvolutionConfig
from lactchain.storage import files
from lactchain.storage.checkpoints import latest_checkpoint, prune_checkpoints
from lactchain.storage.files import atomic_write, disk_errors, make_folder
from lactchain.storage.manifests import verify_manifest, write_manifest


class Killed(BaseException):
    """Ends the code under test at a file operation, without its clean-up, as SIGKILL would."""


class Countdown:
    """Lets `remaining` file operations happen, then strikes; a write is torn in half."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, remaining: int, error: type[BaseException]):
        self.remaining, self.error = remaining, error
        removing = () if error is OSError else ("unlink", "rmdir")  # a full disk allows these
        for name in ("fsync", "replace", "rename", *removing):
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))
        monkeypatch.setattr(files, "open", self.open, raising=False)

    def strike(self, before=lambda: None):
        self.remaining -= 1
        if self.remaining < 0:
            before()
            raise self.error(errno.ENOSPC, "No space left on device")

    def wrap(self, function):
        def counted(*args, **kwargs):
            self.strike()
            return function(*args, **kwargs)

        return counted

    def open(self, path, mode="r", **kwargs):
        self.strike()
        return Torn(path, self) if mode == "xb" else builtins.open(path, mode, **kwargs)


class Torn(io.FileIO):
    """A new file, of whose contents a countdown may let half through."""

    def __init__(self, path, countdown: Countdown):
        super().__init__(path, "x")
        self.countdown = countdown

    def write(self, content: bytes) -> int:
        half, write = content[: len(content) // 2], super().write
        self.countdown.strike(before=lambda: write(half))
        return write(content)


def operations_until_done(monkeypatch, action, error=Killed, at_least=1):
    """Runs `action` cut short at its first, second, ... file operation until it gets through."""
    for remaining in range(1000):
        with monkeypatch.context() as patch:
            Countdown(patch, remaining, error)
            try:
                action()
                assert remaining >= at_least
                return
            except (Killed, DiskError) as raised:
                cut = raised
        yield cut


def test_a_file_is_old_or_new_after_a_kill_at_any_operation(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    path.write_text("old")
    action = partial(atomic_write, path, "new, and longer")
    for _ in operations_until_done(monkeypatch, action, at_least=5):
        assert path.read_text() in ("old", "new, and longer")
    assert path.read_text() == "new, and longer"


def test_a_checkpoint_is_absent_or_whole_after_a_kill_at_any_operation(tmp_path, monkeypatch):
    previous = make_checkpoint(tmp_path, 1)
    newer = tmp_path / "checkpoint-2"
    shutil.copytree(previous, newer, ignore=shutil.ignore_patterns("manifest.json"))
    (newer / "more.bin").write_bytes(b"more")
    action = partial(write_manifest, newer, {"step": 2})
    for _ in operations_until_done(monkeypatch, action, at_least=15):
        is_whole = (newer / "manifest.json").exists()
        assert latest_checkpoint(tmp_path) == (newer if is_whole else previous)
    assert latest_checkpoint(tmp_path) == newer


def test_pruning_cut_at_any_operation_leaves_no_half_checkpoint_that_counts(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step)
    action = partial(prune_checkpoints, tmp_path, keep=1)
    for _ in operations_until_done(monkeypatch, action, at_least=6):
        for manifest in tmp_path.glob("checkpoint-*/manifest.json"):
            verify_manifest(manifest.parent)
        assert latest_checkpoint(tmp_path).name == "checkpoint-3"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_a_failing_disk_is_a_disk_error_and_the_old_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    path.write_text("old")
    action = partial(atomic_write, path, "new")
    for error in operations_until_done(monkeypatch, action, error=OSError):
        assert "summary.json: could not be written (No space left on device)" in str(error)
        assert "need 3 bytes, free" in str(error)
        assert path.read_text() in ("old", "new")  # new if only the folder's fsync failed
        assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_a_generation_is_on_the_disk_before_the_checkpoint_that_follows_it(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def noting(descriptor):
        name = Path(f"/proc/self/fd/{descriptor}").resolve().name
        synced.append((name, os.fstat(descriptor).st_size))
        sync(descriptor)

    member = Individual(0, None, "newcomer", {}, None, None, fitness=1.0)
    with Run.open(tmp_path / "run", RunConfig()) as run:
        monkeypatch.setattr(os, "fsync", noting)
        evolution = Evolution(SimpleNamespace(num_env_steps=5), EvolutionConfig(), number=1)
        evolution.champion, evolution.lineage = member, [{"id": 0}]
        record_generation(run, evolution, [member])
    lines = (tmp_path / "run/lineage.jsonl").stat().st_size
    assert ("lineage.jsonl", lines) in synced


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of 256 KiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_really_full_disk_loses_nothing(tiny_disk):
    path = tiny_disk / "metrics.json"
    atomic_write(path, b"old" * 1000)
    checkpoint = make_checkpoint(tiny_disk, 1)
    refused = 0
    for kilobytes in range(4, 256, 8):
        try:
            atomic_write(path, bytes(1024 * kilobytes))
        except DiskError as error:
            assert f"need {1024 * kilobytes:,} bytes" in str(error)
            refused += 1
        assert path.stat().st_size in (3000, *(1024 * k for k in range(4, 256, 8)))
        verify_manifest(checkpoint)
    assert 0 < refused < 32
    assert sorted(p.name for p in tiny_disk.iterdir()) == ["checkpoint-1", "metrics.json"]


WRITERS = {
    "safetensors": lambda values, path: save_file({"values": values}, path),
    "torch": torch.save,
    "parquet": lambda values, path: parquet.write_table(pyarrow.table([values.numpy()], "v"), path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_every_kind_of_file_meets_a_full_disk_as_a_disk_error(tiny_disk, write):
    path = tiny_disk / "file"
    with pytest.raises(DiskError, match="file: could not be written"), disk_errors(path):
        write(torch.rand(200_000), path)


def test_a_tokenizer_meets_a_full_disk_as_a_disk_error_whichever_file_falls_short(tiny_disk):
    tokenizer, refused = build_tiny_tokenizer(["a b c"] * 3), 0
    for free_pages in range(10):
        (tiny_disk / "filler").write_bytes(bytes(4096 * (64 - free_pages)))
        try:
            with disk_errors(tiny_disk):
                tokenizer.save_pretrained(tiny_disk / "tokenizer")
        except DiskError as error:
            assert "No space left on device" in str(error)
            refused += 1
        shutil.rmtree(tiny_disk / "tokenizer", ignore_errors=True)
    assert 2 < refused < 10


def test_what_torch_says_of_a_full_disk_is_a_disk_error_and_other_errors_pass(tmp_path):
    with pytest.raises(DiskError, match="torch.save fell short"), disk_errors(tmp_path):
        raise RuntimeError("basic_ios::clear: iostream error")
    for kind in (RuntimeError, Exception, ValueError):
        with pytest.raises(kind, match="shapes"), disk_errors(tmp_path):
            raise kind("shapes do not match")


def test_a_read_only_disk_is_a_disk_error(tiny_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(DiskError, match="Read-only file system"):
        atomic_write(tiny_disk / "x.json", "x")


@pytest.mark.parametrize("above", ["run", "run/checkpoints", "run/checkpoints/step_8"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, above):
    (tmp_path / above).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / above).write_text("notes")
    with pytest.raises(DiskError, match="a file is in its way; move that"):
        make_folder(tmp_path / "run/checkpoints/step_8")
    assert (tmp_path / above).read_text() == "notes"
