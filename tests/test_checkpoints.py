"""Checkpoints are whole or refused, whatever befalls their bytes; the newest whole one counts."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lactchain.errors import ConfigError, DataError
from lactchain.storage import manifests
from lactchain.storage.checkpoints import clear_place, latest_checkpoint, prune_checkpoints
from lactchain.storage.files import seal, to_json
from lactchain.storage.manifests import verify_manifest, write_manifest, write_run_file

WEIGHTS = "adapter_model.safetensors"


def make_checkpoint(directory: Path, step: int, **extra) -> Path:
    path = directory / f"checkpoint-{step}"
    (path / "critic").mkdir(parents=True)
    (path / WEIGHTS).write_bytes(random.Random(step).randbytes(3000))
    (path / "critic" / "state.json").write_text(json.dumps({"step": step}))
    (path / "empty.bin").touch()
    write_manifest(path, {"step": step, **extra})
    return path


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    write_run_file(folder, {"run_id": "mine"})
    return folder


def copy_from_another_run(directory: Path, step: int) -> Path:
    """A checkpoint of that step of another run, which somebody has copied here."""
    elsewhere = directory.parent / "another-run"
    elsewhere.mkdir(exist_ok=True)
    write_run_file(elsewhere, {"run_id": "other"})
    source = make_checkpoint(elsewhere, step)
    return Path(shutil.move(source, directory / source.name))


def test_a_manifest_returns_what_was_recorded(tmp_path):
    sizes = {2: "b", 10: "a"}
    path = make_checkpoint(tmp_path, 3, parent=None, sizes=sizes, keys=("a", "b"))
    manifest = verify_manifest(path)
    assert (manifest["step"], manifest["keys"]) == (3, ["a", "b"])
    assert (manifest["run_id"], manifest["place"]) == (None, "checkpoint-3")
    assert manifest["sizes"] == {"2": "b", "10": "a"}
    assert set(manifest["files"]) == {WEIGHTS, "critic/state.json", "empty.bin"}


def test_flipped_bits_and_truncations_of_a_manifest_are_detected_all_of_them(tmp_path):
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
    content = (path / "manifest.json").read_bytes()
    for length in range(len(content)):
        (path / "manifest.json").write_bytes(content[:length])
        with pytest.raises(DataError, match="damaged"):
            verify_manifest(path)


def truncate(path: Path) -> None:
    os.truncate(path / WEIGHTS, 1000)


def replace_by_link(path: Path, other: Path) -> None:
    (path / "empty.bin").unlink()
    (path / "empty.bin").symlink_to(other / "empty.bin")


DAMAGES = {
    "truncated": lambda path, other: truncate(path),
    "lengthened": lambda path, other: (path / WEIGHTS).write_bytes(b"0" * 3001),
    "removed": lambda path, other: (path / "critic" / "state.json").unlink(),
    "swapped": lambda path, other: shutil.copy(other / WEIGHTS, path),
    "manifest swapped": lambda path, other: shutil.copy(other / "manifest.json", path),
    "manifest removed": lambda path, other: (path / "manifest.json").unlink(),
    "manifest forged": lambda path, other: (path / "manifest.json").write_text("[" * 100_000),
    "replaced by a link": replace_by_link,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name_and_passed_over(tmp_path, damage, caplog):
    older, newer = make_checkpoint(tmp_path, 9), make_checkpoint(tmp_path, 10)
    damage(newer, older)
    with pytest.raises(DataError, match=r"checkpoint-10/\S+: "):
        verify_manifest(newer)
    assert latest_checkpoint(tmp_path) == older
    (record,) = caplog.records
    assert record.message.startswith(f"skipped {newer}: ")
    assert "\n" not in record.message
    (older / "critic" / "state.json").unlink()
    assert latest_checkpoint(tmp_path) is None
    assert caplog.messages[-1].startswith(f"skipped {older}: ")


def test_the_newest_is_by_number_not_by_name_or_time(tmp_path):
    assert latest_checkpoint(tmp_path) is latest_checkpoint(tmp_path / "absent") is None
    for step in (100, 20, 3):
        make_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-1000.tmp").mkdir()
    (tmp_path / "checkpoint-").mkdir()
    (tmp_path / "checkpoint-999").write_text("a file")
    assert latest_checkpoint(tmp_path).name == "checkpoint-100"


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
    write_run_file(stage, {"run_id": "stage"})
    found = verify_manifest(make_checkpoint(stage / "checkpoints", 1))
    assert (found["run_id"], found["place"]) == ("stage", "checkpoints/checkpoint-1")
    outside = verify_manifest(make_checkpoint(run_dir / "base", 1))
    assert (outside["run_id"], outside["place"]) == ("mine", "base/checkpoint-1")


@pytest.mark.parametrize(("number", "cut", "kept"), [(4, 3, [2, 4]), (2, 2, [1])])
def test_pruning_keeps_the_newest_that_verify_whatever_is_newer(tmp_path, number, cut, kept):
    for step in range(1, number + 1):
        make_checkpoint(tmp_path, step)
    truncate(tmp_path / f"checkpoint-{cut}")
    prune_checkpoints(tmp_path, keep=len(kept))
    assert latest_checkpoint(tmp_path).name == f"checkpoint-{kept[-1]}"
    assert (tmp_path / "checkpoint-1").exists() == (1 in kept)
    verify_manifest(tmp_path / f"checkpoint-{kept[0]}")


def test_pruning_leaves_what_may_be_of_use_to_somebody(run_dir):
    copy_from_another_run(run_dir, 9)  # which does not count either
    make_newer_version(make_checkpoint(run_dir, 2))
    (make_checkpoint(run_dir, 3) / "manifest.json").write_text("no manifest")
    truncate(make_checkpoint(run_dir, 4))
    (make_checkpoint(run_dir, 5) / "manifest.json").unlink()
    make_checkpoint(run_dir, 6)
    (run_dir / "checkpoint-notes").mkdir()
    prune_checkpoints(run_dir, keep=1)
    left = {path.name for path in run_dir.glob("checkpoint-*")}
    assert left == {f"checkpoint-{step}" for step in (2, 3, 6, 9, "notes")}


def make_newer_version(path: Path) -> None:
    manifest = manifests.read_manifest(path / "manifest.json") | {"schema_version": 2}
    (path / "manifest.json").write_text(to_json(seal(manifest)))


def test_a_checkpoint_of_a_newer_version_refuses_the_start_and_stays(tmp_path):
    make_checkpoint(tmp_path, 1)
    newer = make_checkpoint(tmp_path, 2)
    make_newer_version(newer)
    with pytest.raises(ConfigError, match="checkpoint-2.*newer version.*upgrade lactchain$"):
        latest_checkpoint(tmp_path)
    assert len(list(newer.iterdir())) == 4


@pytest.mark.parametrize("name", [".DS_Store", "critic/notes.txt", "a-link"])
def test_a_foreign_file_is_left_alone_and_harms_nothing(tmp_path, name):
    path = make_checkpoint(tmp_path, 1)
    foreign = path / name
    foreign.symlink_to(tmp_path) if "link" in name else foreign.write_bytes(b"mine")
    assert latest_checkpoint(tmp_path) == path
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
        truncate(path)
        clear_place(path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"set-aside-1-checkpoint-20", "set-aside-2-checkpoint-20"}
    assert [r.message.endswith(f"now set-aside-{n}-checkpoint-20") for n, r in
            enumerate(caplog.records, start=1)] == [True, True]  # fmt: skip
    assert latest_checkpoint(tmp_path) is None
    (make_checkpoint(tmp_path, 20) / "manifest.json").unlink()
    clear_place(path)  # a crash left it, nobody can use it
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o700])
def test_who_may_look_into_a_folder_may_read_its_weights(tmp_path, mode):
    """Safetensors leaves its files to their owner alone, whatever the umask says."""
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    tmp_path.chmod(mode)
    write_manifest(tmp_path, {})
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == mode & 0o666
