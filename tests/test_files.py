"""Files of lines and of versions: damage and newer versions are named."""

import pytest

from lactchain.errors import DataError
from lactchain.storage.files import append_json_lines, read_sealed_lines, read_versioned_json, seal


def test_a_newer_version_is_named_before_what_it_lacks(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"schema_version": 2, "discount": 0.9}', "utf-8")
    with pytest.raises(DataError, match="expected schema version 1, got 2"):
        read_versioned_json(path, 1, names=["gamma"])
    path.write_text('{"schema_version": 1, "discount": 0.9}', "utf-8")
    with pytest.raises(DataError, match=r"damaged, \['gamma'\] are missing"):
        read_versioned_json(path, 1, names=["gamma"])


def test_no_byte_of_sealed_lines_changes_unnoticed(tmp_path):
    path = tmp_path / "trials.jsonl"
    records = [{"trial": i, "fitness": i / 3, "config": {"gamma": [0.9, None]}} for i in range(3)]
    append_json_lines(path, map(seal, records, range(3)))
    assert read_sealed_lines(path) == records
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if place == len(whole) - 1:
            assert read_sealed_lines(path) == records[:2]  # as if a crash had cut the line
        else:
            with pytest.raises(DataError, match=r"trials.jsonl: line \d"):
                read_sealed_lines(path)
    lines = whole.splitlines(keepends=True)
    path.write_bytes(lines[1] + lines[0] + lines[2])
    with pytest.raises(DataError, match="line 1 is damaged, or was written for another place"):
        read_sealed_lines(path)
    path.write_bytes(b"".join(lines[:2]))
    assert read_sealed_lines(path) == records[:2]
