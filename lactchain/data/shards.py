"""Work cut into shards: files that processes share out, and that a restarted run keeps.

A process claims the next shard when it has finished one. What a shard holds follows from its number
alone, so that the result depends neither on how many processes worked, nor on who made what, nor on
how often they were killed.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lactchain.errors import DataError, Interrupted
from lactchain.runs import distributed
from lactchain.runs.process import stop_requested
from lactchain.runs.progress import under_way
from lactchain.storage.files import disk_errors, make_folder
from lactchain.storage.manifests import manifest_beside, read_manifest

Row = TypeVar("Row")
log = logging.getLogger(__name__)


def work_through(
    folder: Path,
    num_shards: int,
    make: Callable[[int], tuple[Sequence[Row], Mapping[str, float]]],
    write: Callable[[Path, Sequence[Row], Mapping[str, Any]], None],
    read: Callable[[Path], list[Row]],
    title: str,
) -> tuple[list[Row], Counter[str]]:
    """All rows of all shards, in order; makes those that are missing or damaged.

    Args:
        folder: of the files; on a file system that all processes see.
        make: the rows of a shard, and a tally: numbers about how they came to be.
        write: takes the file, its rows, and facts for its manifest: the tally, so that it counts
            whoever made them, and when.
        read: the rows of a file; `DataError` where it is not whole.

    Returns:
        The rows, and the sum of the tallies.

    Raises:
        Interrupted: a signal asked to stop; the finished shards are kept.
    """
    with disk_errors(folder):
        make_folder(folder)
    paths = [folder / f"{i:05d}-of-{num_shards:05d}.parquet" for i in range(num_shards)]
    with distributed.Shares(num_shards) as shares, under_way(title, num_shards) as step:

        def watch(finished: int) -> None:
            step.at(finished)
            stop_if_requested(folder)

        for shard in shares:
            if not _is_whole(paths[shard], read):
                rows, tally = make(shard)
                write(paths[shard], rows, {"tally": tally})
            watch(shares.finish())
        shares.wait(watch)
    total: Counter[str] = Counter()
    for path in paths:
        total.update(read_manifest(manifest_beside(path))["tally"])
    return [row for path in paths for row in read(path)], total


def stop_if_requested(folder: Path) -> None:
    """Raises `Interrupted` if a signal asked this process to stop."""
    if number := stop_requested():
        raise Interrupted(
            number, f"stopped; what is finished is in {folder}, give the same command to go on"
        )


def _is_whole(path: Path, read: Callable[[Path], list[Row]]) -> bool:
    if not path.exists():
        return False
    try:
        read(path)
    except DataError as error:
        log.warning("%s: is made again (%s)", path, error)
        return False
    return True
