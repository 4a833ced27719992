"""Checkpoints are whole or refused, whatever happens to the process, the disk or the bytes."""

import builtins
import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lactchain import files, manifests
from lactchain.checkpoints import clear_place, latest_checkpoint, prune_checkpoints
from lactchain.errors import ConfigError, DataError, DiskError
from lactchain.files import atomic_write, disk_errors
from lactchain.manifests import verify_manifest, write_manifest


def make_checkpoint(directory: Path, step: int, **extra) -> Path:
    path = directory / f"checkpoint-{step}"
    (path / "critic").mkdir(parents=True)
    (path / "adapter_model.safetensors").write_bytes(random.Random(step).randbytes(3000))
    (path / "critic" / "state.json").write_text(json.dumps({"step": step}))
    (path / "empty.bin").touch()
    write_manifest(path, {"step": step, **extra})
    return path


@pytest.fixture
def run_dir(tmp_path):
    """The folder of a run."""
    folder = tmp_path / "run"
    folder.mkdir()
    name_run(folder, "mine")
    return folder


def name_run(directory: Path, run_id: str) -> None:
    """What `Run.open` notes in the folder of a run."""
    (directory / "environment.json").write_text(json.dumps({"run_id": run_id}))


def copy_from_another_run(directory: Path, step: int) -> Path:
    """A checkpoint of that step of another run, which somebody has copied here."""
    elsewhere = directory.parent / "another-run"
    elsewhere.mkdir(exist_ok=True)
    name_run(elsewhere, "other")
    source = make_checkpoint(elsewhere, step)
    return Path(shutil.move(source, directory / source.name))


def test_a_manifest_returns_what_was_recorded(tmp_path):
    path = make_checkpoint(tmp_path, 3, parent=None, versions={"torch": "2.13"}, keys=("a", "b"))
    manifest = verify_manifest(path)
    assert manifest["step"] == 3
    assert (manifest["run_id"], manifest["place"]) == (None, "checkpoint-3")
    assert manifest["keys"] == ["a", "b"]
    assert set(manifest["files"]) == {
        "adapter_model.safetensors", "critic/state.json", "empty.bin"
    }  # fmt: skip


def test_a_manifest_may_have_numbers_for_keys(tmp_path):
    path = make_checkpoint(tmp_path, 3, sizes={2: "b", 10: "a"})
    assert verify_manifest(path)["sizes"] == {"2": "b", "10": "a"}


def test_a_manifest_keeps_its_own_keys(tmp_path):
    with pytest.raises(ValueError, match="files"):
        make_checkpoint(tmp_path, 1, files={})


def test_flipped_bits_are_detected_all_2480_of_them(tmp_path):
    path = make_checkpoint(tmp_path, 1, world_size=1)
    rng = random.Random(0)
    flips = {"manifest.json": 1600, "adapter_model.safetensors": 800, "critic/state.json": 80}
    for name, number in flips.items():
        content = (path / name).read_bytes()
        for bit in rng.sample(range(8 * len(content)), number):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            (path / name).write_bytes(flipped)
            with pytest.raises(DataError, match=name):
                verify_manifest(path)
        (path / name).write_bytes(content)
    verify_manifest(path)


def test_every_truncation_of_a_manifest_is_detected(tmp_path):
    path = make_checkpoint(tmp_path, 1)
    content = (path / "manifest.json").read_bytes()
    for length in range(len(content)):
        (path / "manifest.json").write_bytes(content[:length])
        with pytest.raises(DataError, match="damaged"):
            verify_manifest(path)


def truncate(path: Path, other: Path) -> None:
    os.truncate(path / "adapter_model.safetensors", 1000)


def lengthen(path: Path, other: Path) -> None:
    with open(path / "adapter_model.safetensors", "ab") as file:
        file.write(b"\0")


def remove(path: Path, other: Path) -> None:
    (path / "critic" / "state.json").unlink()


def swap(path: Path, other: Path) -> None:
    shutil.copy(other / "adapter_model.safetensors", path / "adapter_model.safetensors")


def swap_manifest(path: Path, other: Path) -> None:
    shutil.copy(other / "manifest.json", path / "manifest.json")


def remove_manifest(path: Path, other: Path) -> None:
    (path / "manifest.json").unlink()


def replace_by_link(path: Path, other: Path) -> None:
    (path / "empty.bin").unlink()
    (path / "empty.bin").symlink_to(other / "empty.bin")


def forge_manifest(path: Path, other: Path) -> None:
    (path / "manifest.json").write_text("[" * 100_000)


DAMAGES = [
    truncate, lengthen, remove, swap, swap_manifest, remove_manifest, replace_by_link,
    forge_manifest,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_refused_by_name_and_passed_over(tmp_path, damage, caplog):
    older, newer = make_checkpoint(tmp_path, 9), make_checkpoint(tmp_path, 10)
    damage(newer, older)
    with pytest.raises(DataError, match=r"checkpoint-10/\S+: "):
        verify_manifest(newer)
    with caplog.at_level(logging.WARNING):
        assert latest_checkpoint(tmp_path) == older
    (record,) = caplog.records
    assert "checkpoint-10" in record.message
    assert "\n" not in record.message


def test_the_newest_is_by_number_not_by_name_or_time(tmp_path):
    for step in (100, 20, 3):
        make_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-1000.tmp").mkdir()
    (tmp_path / "checkpoint-").mkdir()
    (tmp_path / "checkpoint-999").write_text("a file")
    assert latest_checkpoint(tmp_path).name == "checkpoint-100"


def test_no_checkpoint_is_none(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "absent") is None


def test_checkpoints_of_another_run_or_number_are_passed_over(run_dir, caplog):
    mine = make_checkpoint(run_dir, 1)
    copy_from_another_run(run_dir, 2)
    shutil.copytree(mine, run_dir / "checkpoint-7")
    assert latest_checkpoint(run_dir) == mine
    assert "place: expected 'checkpoint-7', got 'checkpoint-1'" in caplog.text
    assert "run_id: expected 'mine', got 'other'" in caplog.text


def test_a_folder_may_be_moved_out_of_a_run_but_not_within_it(run_dir, tmp_path):
    mine = make_checkpoint(run_dir, 1)
    shutil.copytree(mine, tmp_path / "mine-to-keep")
    assert verify_manifest(tmp_path / "mine-to-keep")["run_id"] == "mine"
    shutil.copytree(mine, run_dir / "another-place")
    with pytest.raises(DataError, match=r"another-place: was written elsewhere \(place: expected"):
        verify_manifest(run_dir / "another-place")
    shutil.move(run_dir, tmp_path / "renamed")
    verify_manifest(tmp_path / "renamed/checkpoint-1")


def test_the_innermost_run_is_what_a_manifest_names(run_dir):
    stage = run_dir / "round_1/critic"
    stage.mkdir(parents=True)
    name_run(stage, "stage")
    found = verify_manifest(make_checkpoint(stage / "checkpoints", 1))
    assert (found["run_id"], found["place"]) == ("stage", "checkpoints/checkpoint-1")
    outside = verify_manifest(make_checkpoint(run_dir / "base", 1))
    assert (outside["run_id"], outside["place"]) == ("mine", "base/checkpoint-1")


def test_a_checkpoint_of_an_older_version_is_taken_if_it_names_this_run(run_dir):
    """It recorded its own name and the run, but not the place."""
    for step, run_id in ((1, "mine"), (2, "other")):
        path = make_checkpoint(run_dir, step)
        manifest = manifests.read_manifest(path / "manifest.json") | {"run_id": run_id}
        manifest["name"] = manifest.pop("place")
        (path / "manifest.json").write_text(manifests._serialise(manifest))
    assert latest_checkpoint(run_dir) == run_dir / "checkpoint-1"


def test_pruning_keeps_the_newest_that_verify(tmp_path):
    for step in (1, 2, 3, 4):
        make_checkpoint(tmp_path, step)
    truncate(tmp_path / "checkpoint-3", tmp_path)
    prune_checkpoints(tmp_path, keep=2)
    assert latest_checkpoint(tmp_path).name == "checkpoint-4"
    assert not (tmp_path / "checkpoint-1").exists()
    verify_manifest(tmp_path / "checkpoint-2")


def test_pruning_removes_nothing_while_nothing_newer_is_good(tmp_path):
    make_checkpoint(tmp_path, 1)
    truncate(make_checkpoint(tmp_path, 2), tmp_path)
    prune_checkpoints(tmp_path, keep=1)
    assert latest_checkpoint(tmp_path).name == "checkpoint-1"


def test_pruning_counts_only_checkpoints_of_this_run(run_dir):
    mine = make_checkpoint(run_dir, 1)
    copy_from_another_run(run_dir, 9)
    prune_checkpoints(run_dir, keep=1)
    assert latest_checkpoint(run_dir) == mine


def test_pruning_leaves_what_may_be_of_use_to_somebody(run_dir):
    copy_from_another_run(run_dir, 1)
    make_newer_version(make_checkpoint(run_dir, 2))
    (make_checkpoint(run_dir, 3) / "manifest.json").write_text("no manifest")
    truncate(make_checkpoint(run_dir, 4), run_dir)
    (make_checkpoint(run_dir, 5) / "manifest.json").unlink()
    make_checkpoint(run_dir, 6)
    prune_checkpoints(run_dir, keep=1)
    left = {path.name for path in run_dir.glob("checkpoint-*")}
    assert left == {f"checkpoint-{step}" for step in (1, 2, 3, 6)}


def make_newer_version(path: Path) -> None:
    manifest = manifests.read_manifest(path / "manifest.json") | {"schema_version": 2}
    (path / "manifest.json").write_text(manifests._serialise(manifest))


def test_a_checkpoint_of_a_newer_version_refuses_the_start_and_stays(tmp_path):
    make_checkpoint(tmp_path, 1)
    newer = make_checkpoint(tmp_path, 2)
    make_newer_version(newer)
    with pytest.raises(ConfigError, match="checkpoint-2.*newer version.*upgrade lactchain$"):
        latest_checkpoint(tmp_path)
    assert len(list(newer.iterdir())) == 4


@pytest.mark.parametrize("name", [".DS_Store", "critic/notes.txt", "a-link"])
def test_a_foreign_file_is_named_once_left_alone_and_harms_nothing(tmp_path, name, caplog):
    path = make_checkpoint(tmp_path, 1)
    foreign = path / name
    foreign.symlink_to(tmp_path) if "link" in name else foreign.write_bytes(b"mine")
    for _ in range(2):
        assert latest_checkpoint(tmp_path) == path
    (record,) = caplog.records
    assert record.message == f"{foreign}: not listed in manifest.json, left alone"
    assert os.path.lexists(foreign)


def test_what_a_file_browser_leaves_while_a_checkpoint_is_written_may_change(tmp_path):
    path = make_checkpoint(tmp_path, 1)
    for content in (b"here", b"moved"):
        (path / ".DS_Store").write_bytes(content)
        (path / "critic" / ".DS_Store").write_bytes(content)
        if content == b"here":
            write_manifest(path, {"step": 1})
    assert ".DS_Store" not in verify_manifest(path)["files"]


def test_a_damaged_checkpoint_is_set_aside_where_its_step_is_written_anew(tmp_path, caplog):
    for _ in range(2):
        path = make_checkpoint(tmp_path, 20)
        truncate(path, tmp_path)
        clear_place(path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"set-aside-1-checkpoint-20", "set-aside-2-checkpoint-20"}
    assert [r.message.endswith(f"now set-aside-{n}-checkpoint-20") for n, r in
            enumerate(caplog.records, start=1)] == [True, True]  # fmt: skip
    assert latest_checkpoint(tmp_path) is None
    (make_checkpoint(tmp_path, 20) / "manifest.json").unlink()
    clear_place(path)  # a crash left it, nobody can use it
    assert {path.name for path in tmp_path.iterdir()} == names


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

    def strike(self) -> bool:
        self.remaining -= 1
        return self.remaining < 0

    def fail(self):
        raise self.error(errno.ENOSPC, "No space left on device")

    def wrap(self, function):
        def counted(*args, **kwargs):
            if self.strike():
                self.fail()
            return function(*args, **kwargs)

        return counted

    def open(self, path, mode="r", **kwargs):
        if self.strike():
            self.fail()
        file = builtins.open(path, mode, **kwargs)  # noqa: SIM115  - the caller closes it
        return TornWriter(file, self) if mode == "wb" else file


class TornWriter:
    def __init__(self, file, countdown: Countdown):
        self.file, self.countdown = file, countdown

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, content: bytes) -> None:
        if self.countdown.strike():
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            self.countdown.fail()
        self.file.write(content)


def operations_until_done(monkeypatch, action, error=Killed):
    """Runs `action` cut short at its first, second, ... file operation until it gets through."""
    for remaining in range(1000):
        with monkeypatch.context() as patch:
            Countdown(patch, remaining, error)
            try:
                action()
                return
            except (Killed, DiskError) as raised:
                cut = raised
        yield cut


def test_a_file_is_old_or_new_after_a_kill_at_any_operation(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    path.write_text("old")
    cuts = 0
    for _ in operations_until_done(monkeypatch, lambda: atomic_write(path, "new, and longer")):
        assert path.read_text() in ("old", "new, and longer")
        cuts += 1
    assert path.read_text() == "new, and longer"
    assert cuts >= 5


def test_a_checkpoint_is_absent_or_whole_after_a_kill_at_any_operation(tmp_path, monkeypatch):
    previous = make_checkpoint(tmp_path, 1)
    newer = tmp_path / "checkpoint-2"
    shutil.copytree(previous, newer, ignore=shutil.ignore_patterns("manifest.json"))
    (newer / "more.bin").write_bytes(b"more")
    cuts = 0
    for _ in operations_until_done(monkeypatch, lambda: write_manifest(newer, {"step": 2})):
        assert latest_checkpoint(tmp_path) == (
            newer if (newer / "manifest.json").exists() else previous
        )
        cuts += 1
    assert latest_checkpoint(tmp_path) == newer
    assert cuts >= 15


def test_pruning_cut_at_any_operation_leaves_only_whole_checkpoints(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step)
    cuts = 0
    for _ in operations_until_done(monkeypatch, lambda: prune_checkpoints(tmp_path, keep=1)):
        for path in tmp_path.glob("checkpoint-*"):
            verify_manifest(path)
        assert latest_checkpoint(tmp_path).name == "checkpoint-3"
        cuts += 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
    assert cuts >= 8


def test_a_failing_disk_is_a_disk_error_and_the_old_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    path.write_text("old")
    action = lambda: atomic_write(path, "new")  # noqa: E731
    for error in operations_until_done(monkeypatch, action, error=OSError):
        assert "summary.json: could not be written (No space left on device)" in str(error)
        assert "need 3 bytes, free" in str(error)
        assert path.read_text() in ("old", "new")  # new if only the folder's fsync failed
        assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


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


@pytest.mark.parametrize("writer", ["safetensors", "torch", "parquet"])
def test_every_kind_of_file_meets_a_full_disk_as_a_disk_error(tiny_disk, writer):
    import pyarrow
    import pyarrow.parquet
    import torch
    from safetensors.torch import save_file

    values = torch.rand(200_000)
    writers = {
        "safetensors": lambda path: save_file({"values": values}, path),
        "torch": lambda path: torch.save(values, path),
        "parquet": lambda path: pyarrow.parquet.write_table(
            pyarrow.table({"values": values.numpy()}), path
        ),
    }
    path = tiny_disk / "file"
    with pytest.raises(DiskError, match="file: could not be written"), disk_errors(path):
        writers[writer](path)


def test_an_error_that_is_not_the_disks_passes(tmp_path):
    with pytest.raises(RuntimeError, match="shapes"), disk_errors(tmp_path):
        raise RuntimeError("shapes do not match")


def test_a_read_only_disk_is_a_disk_error(tiny_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(DiskError, match="Read-only file system"):
        atomic_write(tiny_disk / "x.json", "x")


WRITER = """
import itertools, random, shutil, sys
from pathlib import Path
from lactchain.checkpoints import prune_checkpoints
from lactchain.manifests import write_manifest
directory = Path(sys.argv[1])
for step in itertools.count(int(sys.argv[2])):
    path = directory / f"checkpoint-{step}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name in "abc":
        (path / name).write_bytes(random.Random(step).randbytes(20_000))
    write_manifest(path, {"step": step})
    prune_checkpoints(directory, keep=2)
    print(step, flush=True)
"""


@pytest.mark.parametrize("seed", range(5))
def test_after_sigkill_at_a_random_time_the_last_announced_checkpoint_is_there(
    tmp_path, root, seed
):
    rng = random.Random(seed)
    announced = 0
    for _ in range(2):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(announced + 1)]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
            announced = int(process.stdout.readline())
            time.sleep(rng.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
            announced = max([announced, *map(int, process.stdout.read().split())])
        newest = latest_checkpoint(tmp_path)
        assert int(newest.name.rpartition("-")[2]) >= announced
        announced = int(newest.name.rpartition("-")[2])
