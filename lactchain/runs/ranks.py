"""Several processes of a command on the CPU of this machine: started, listened to, and ended."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from lactchain.errors import ProcessLost
from lactchain.runs.distributed import POLL_SECONDS
from lactchain.runs.process import STOPPING, stop_requested


def on_processes(words: Sequence[str], count: int) -> list[str]:
    """The words of a command as they are typed to start it on so many processes."""
    program, *others = words
    if count == 1 or others[0] == "quickstart":  # which starts its own
        return [*words]
    launcher = ["torchrun", "--standalone", "--nproc-per-node", str(count)]
    return [*launcher, *(others if program == "python" else ["-m", *words])]


def run_ranks(command: Sequence[str], count: int) -> int:
    """The exit code of a command on so many processes: that of the first one that fails.

    What several say is said once, and what the others say when one has failed is left out.

    Raises:
        ProcessLost: one was killed.
    """
    heard = [stop_requested()] if stop_requested() else []
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: heard.append(number))
    group = _group(count)
    ranks = [_start(command, rank, group) for rank in range(count)]
    failed: list[subprocess.Popen] = []
    said: dict[str, subprocess.Popen] = {}
    speakers = [threading.Thread(target=_say, args=(r, failed, said), daemon=True) for r in ranks]
    for speaker in speakers:
        speaker.start()
    _wait(ranks, failed, heard)
    for speaker in speakers:
        speaker.join(1.0)  # a process of an environment may hold the pipe
    code = failed[0].returncode if failed else 0
    if heard and not 0 <= code <= 128:
        return 128 + heard[0]
    if code < 0:
        raise ProcessLost(
            f"rank {ranks.index(failed[0])} was killed by signal {-code}; give the same command "
            "to go on from the last checkpoint"
        )
    return code


def _wait(
    ranks: Sequence[subprocess.Popen], failed: list[subprocess.Popen], heard: Sequence[int]
) -> None:
    """Until all have ended; what this process hears they hear, and a SIGTERM when one failed."""
    num_sent = 0
    while True:
        is_over = None not in [rank.poll() for rank in ranks]
        for number in heard[num_sent:]:
            num_sent += 1
            for rank in ranks:  # in Python's own start Ctrl-C would leave a stack trace
                rank.send_signal(signal.SIGTERM if number == signal.SIGINT else number)
        if not failed and (ended := [rank for rank in ranks if rank.returncode]):
            failed.append(ended[0])
            if not heard:  # else all save, and end by themselves
                for rank in ranks:
                    rank.terminate()
        if is_over:
            return
        time.sleep(POLL_SECONDS)


def _group(count: int) -> dict[str, str]:
    """What tells processes of each other, and hides GPUs from them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return where | sizes | threads | {"CUDA_VISIBLE_DEVICES": "-1", "ACCELERATE_USE_CPU": "true"}


def _start(command: Sequence[str], rank: int, group: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen(
        command,
        env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that Ctrl-C comes once, by this process
    )


def _say(
    rank: subprocess.Popen, failed: list[subprocess.Popen], said: dict[str, subprocess.Popen]
) -> None:
    """Passes on what a process says, but for what another one has said already."""
    for line in rank.stderr:
        first = said.setdefault(re.sub(r"^\[rank \d+\] ", "", line), rank)
        if first is rank and (not failed or rank in failed):
            sys.stderr.write(line)
