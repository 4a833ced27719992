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
from lactchain.runs.distributed import POLL_SECONDS, STARTED_BY
from lactchain.runs.process import stop_requested
from lactchain.runs.signals import STOPPING


def run_ranks(command: Sequence[str], count: int) -> int:
    """The exit code of a command on so many processes: that of the first one that fails.

    They hear the signals that this process hears, and a SIGTERM when one has failed. What several
    say is said once, and what the others say when one has failed is left out.

    Raises:
        ProcessLost: one was killed.
    """
    heard = [stop_requested()] if stop_requested() else []
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: heard.append(number))
    ranks = _started(command, count)
    first_by_line: dict[str, subprocess.Popen] = {}
    failed: subprocess.Popen | None = None

    def say(rank: subprocess.Popen) -> None:
        for line in rank.stderr:
            first = first_by_line.setdefault(re.sub(r"^\[rank \d+\] ", "", line), rank)
            if first is rank and failed in (None, rank):
                sys.stderr.write(line)

    speakers = [threading.Thread(target=say, args=[rank], daemon=True) for rank in ranks]
    for speaker in speakers:
        speaker.start()
    num_sent, is_over = 0, False
    while not is_over:
        is_over = None not in [rank.poll() for rank in ranks]
        to_send = heard[num_sent:]
        num_sent += len(to_send)
        if failed is None and (failed := next((r for r in ranks if r.returncode), None)):
            to_send += [] if heard else [signal.SIGTERM]  # who heard saves, and ends by itself
        for number in to_send:
            for rank in ranks:  # in Python's own start Ctrl-C would leave a stack trace
                rank.send_signal(signal.SIGTERM if number == signal.SIGINT else number)
        time.sleep(0 if is_over else POLL_SECONDS)
    for speaker in speakers:
        speaker.join(1.0)  # a process of an environment may hold the pipe
    code = 0 if failed is None else failed.returncode
    if heard and not 0 <= code <= 128:
        return 128 + heard[0]
    if code < 0:
        killed = f"rank {ranks.index(failed)} was killed by signal {-code}"
        raise ProcessLost(f"{killed}; give the same command to go on from the last checkpoint")
    return code


def _started(command: Sequence[str], count: int) -> list[subprocess.Popen]:
    """Processes that are told of each other, and to leave GPUs alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    group |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    group |= {STARTED_BY: str(os.getpid()), "OMP_NUM_THREADS": threads}
    group |= {"CUDA_VISIBLE_DEVICES": "-1", "ACCELERATE_USE_CPU": "true"}
    return [
        subprocess.Popen(
            command,
            env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that Ctrl-C comes once, by this process
        )
        for rank in range(count)
    ]
