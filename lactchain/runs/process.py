"""Processes: how a script starts, hears signals, and ends; and on what its results depend."""

import errno
import functools
import gc
import inspect
import logging
import math
import multiprocessing
import os
import platform
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from lactchain.config.parsing import parse, take_options, typed_modules
from lactchain.environments.faults import OURS, overdue
from lactchain.environments.registry import import_modules, modules_of, name_modules
from lactchain.errors import (
    ConfigError,
    DataError,
    EnvironmentFault,
    Interrupted,
    LactChainError,
    ProcessLost,
)
from lactchain.plugins import required
from lactchain.runs import distributed
from lactchain.runs.console import (
    LogLines,
    console,
    guard_streams,
    is_watched,
    leave_streams,
    nothing_under_way,
    one_line,
    tell,
)
from lactchain.runs.preflight import look_up
from lactchain.runs.signals import AT_ONCE, STOPPING

# How long one of several processes may take to notice a signal.
GRACE_SECONDS = 10.0
LOST_SECONDS = 5.0
SPINS = "10000"
"""How often a thread of torch looks for work before it sleeps: half a millisecond. Libgomp's own
300,000 cost 15 ms, so that two threads on cores that others use too spend their time in waiting."""
TELEMETRY_OFF = {"HF_HUB_DISABLE_TELEMETRY": "1", "DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}

QUESTIONS = """--dry_run makes nothing: it prints the memory that this takes, beside what the device
has, where a language model is loaded. --import MODULE imports a module of yours first, which
registers environments; a file of settings imports none. --inexact goes on with a run though
something is not as it was, such as the number of processes or threads, and the result another.
--workers ray:N has N workers of Ray make the files of episodes, pairs and completions.
"""

# The only variables of the process that are written down; any other may hold a secret.
RECORDED_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "WORLD_SIZE")
RECORDED_PACKAGES = (
    "accelerate", "datasets", "gymnasium", "numpy", "peft", "safetensors",
    "tokenizers", "torch", "transformers",
)  # fmt: skip

Config = TypeVar("Config")

log = logging.getLogger(__name__)


def launch(main: Callable[[Config], Any], config_class: type[Config], usage: str = "") -> None:
    """Runs a script: configuration, signals, `main(config)`, exit code.

    A `LactChainError` ends the script with its one line and its exit code. `--help` begins with
    the `usage`, before the docstring of the module that `main` is in.
    """
    global _options
    os.environ.update(TELEMETRY_OFF)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is loaded
    # Rollouts make many small objects and no cycles: looking for some costs a quarter of the time.
    gc.set_threshold(100_000, 20, 100)
    guard_streams()
    prefix = f"[rank {distributed.rank()}] " if distributed.world_size() > 1 else ""
    speaker = "" if distributed.is_main() else prefix
    logging.basicConfig(
        format=f"{speaker}%(message)s", level=logging.WARNING, handlers=[LogLines()]
    )
    logging.captureWarnings(True)  # what others warn of may hold control characters
    # On a CPU it warns at every layer that it computes in 16 bits.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # What all processes would say alike is said once.
    level = logging.INFO if distributed.is_main() else logging.WARNING
    for package in ("lactchain", "lactchain_extras"):
        logging.getLogger(package).setLevel(level)
    console.quiet = not distributed.is_main()
    alone = True
    try:
        own = inspect.getmodule(main).__doc__ or ""
        first, _, rest = own.partition("\n\n")
        about = usage, rest if first in (usage or "") else own, QUESTIONS
        _options, arguments = take_options(sys.argv[1:])
        name_modules(typed_modules(arguments))
        import_modules(_options.modules)
        config = parse(config_class, arguments, "\n".join(filter(None, about)))
        distributed.check_launcher()
        if _options.workers:
            distributed.made = required("engines", "--workers").workers(_options.workers[-1])
        config = look_up(config, may_be_missing=_options.dry_run)
        alone = False
        _listen_to_signals()
        _work(main, config)
    except (LactChainError, MemoryError, OSError) as error:
        ours = _as_ours(error)
        label = "" if isinstance(ours, Interrupted) else "error: "
        if distributed.is_main() or not alone:  # all find the same wrong in a command
            sys.stderr.write(f"{prefix}{label}{one_line(str(ours))}\n")
        sys.exit(ours.exit_code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        leave_streams()
        end = sys.exception()
        code = int(end.code or 0) if isinstance(end, SystemExit) else int(end is not None)
        distributed.leave(in_good_order=code == 0 or code > 128)
        threading.Thread(target=_end_without_threads, args=(code,), daemon=True).start()


def _as_ours(error: LactChainError | MemoryError | OSError) -> LactChainError:
    """What the system refuses, and says by itself, needs no trace; the rest is raised again."""
    if isinstance(error, LactChainError):
        return error
    if isinstance(error, MemoryError):
        return ConfigError(f"no memory is left ({error}); make the world or the batches smaller")
    if error.filename is None or error.errno not in (errno.ENAMETOOLONG, errno.EACCES):
        raise error
    return ConfigError(f"{str(error.filename)[:200]}: {error.strerror}")


def _end_without_threads(code: int) -> None:
    """Ends the process when the main thread is done, and others' threads or processes keep it."""
    main = threading.main_thread()
    main.join()
    time.sleep(GRACE_SECONDS)
    for child in multiprocessing.active_children():  # of a world, deaf to SIGTERM
        child.kill()
    left = [t.name for t in threading.enumerate() if not t.daemon and t is not main]
    if left:
        tell(f"ended without waiting for the threads {', '.join(left)}")
        os._exit(code)


def _work(main: Callable[[Config], Any], config: Config) -> None:
    """Nothing that a script calls may end it as if its work were done."""
    try:
        main(config)
    except RuntimeError as error:
        if not distributed.is_lost(error):
            raise
        time.sleep(LOST_SECONDS)  # who watches the others knows which one died, and says so
        raise ProcessLost(
            f"{distributed.ended()} of this launch has ended, see its output; give the same "
            "command to go on from the last checkpoint"
        ) from error
    except SystemExit as end:
        raise EnvironmentFault(
            "the environment, or other code that is not LactChain's, called "
            f"sys.exit({end.code!r}) in the middle of the work; let it raise an error, or end the "
            "episode"
        ) from end


_options, _ = take_options([])
"""What the command says beside its settings: see `QUESTIONS`."""


def is_dry_run() -> bool:
    """Whether the command asked for an estimate only."""
    return _options.dry_run


def refuse_unless_inexact(problem: str) -> None:
    """Raises `DataError`, or warns where the command says that it is to go on all the same."""
    if not _options.inexact:
        raise DataError(f"{problem}; or add --inexact on the command line to go on all the same")
    log.warning("%s: goes on all the same", problem)


_requested_signal = 0


def stop_requested() -> int:
    """The number of the signal that asked this process to stop, 0 if none did.

    Whoever works in a loop polls it, saves, and raises `Interrupted` with that number.
    """
    return _requested_signal


def _listen_to_signals() -> None:
    heard, woken = os.pipe()
    if distributed.world_size() > 1:  # first, so that who hears a signal is ended if it is stuck
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken)
        os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))
    threading.Thread(target=_watch, args=(heard,), daemon=True).start()
    for number in STOPPING:
        if number in AT_ONCE or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _request_stop)


def _watch(pipe: int) -> None:
    """Ends a process that cannot end by itself; what is saved stays.

    A step of an environment has as long as processes wait for each other, and after a signal
    `GRACE_SECONDS`. So long has one of several processes that does not act on a signal, since it
    waits for one that has ended. Python runs its handlers between two steps of the main thread;
    the number of the signal comes through the pipe at once.
    """
    heard, since, waiting = 0, math.inf, select.poll()
    waiting.register(pipe, select.POLLIN)
    while True:
        if waiting.poll(1000) and (number := os.read(pipe, 1)[0]) in STOPPING:
            heard = heard or number  # others are an environment's own business
        limit, code = distributed.timeout.total_seconds(), EnvironmentFault.exit_code
        if asked := _requested_signal or heard:
            since = min(since, time.monotonic())
            limit, code = min(GRACE_SECONDS, limit), 128 + asked
        if line := overdue(limit):
            tell(f"error: {line}; give the same command to go on")
            os._exit(code)
        is_stuck = heard and (not _requested_signal or not distributed.has_met())
        if is_stuck and time.monotonic() > since + GRACE_SECONDS:
            os._exit(code)


def _request_stop(number: int, _: FrameType | None) -> None:
    global _requested_signal
    if _requested_signal:
        if number not in AT_ONCE:
            return  # a terminal that closes, and its shell, may both say so
        os._exit(128 + number)
    _requested_signal = number
    behind_the_live_line = "\n" if is_watched() else ""
    tell(f"{behind_the_live_line}stopping as soon as the state is saved; once more stops at once")


def seed_everything(seed: int, threads: int | None = None) -> None:
    """Seeds python, numpy and torch, and sets what torch computes by.

    An environment may have set other threads, which decide how sums are split, or types. None: as
    many `threads` as the cores that this process may use.
    """
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(threads or num_cores())
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    OURS["threads"] = torch.get_num_threads, torch.set_num_threads
    OURS["types"] = torch.get_default_dtype, torch.set_default_dtype
    OURS["device"] = lambda: torch.empty(0).device, lambda _: torch.set_default_device(None)
    OURS["gradients"] = torch.is_grad_enabled, torch.set_grad_enabled


def num_cores() -> int:
    """Cores that this process may use, its share where a launcher has started several."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def on_processes(words: Sequence[str], count: int) -> list[str]:
    """The words of a command as they are typed to start it on so many processes."""
    program, *others = words
    if count == 1 or others[0] == "quickstart":  # which starts its own
        return [*words]
    launcher = ["torchrun", "--standalone", "--nproc-per-node", str(count)]
    return [*launcher, *(others if program == "python" else ["-m", *words])]


def provenance() -> dict[str, Any]:
    """What results depend on beside the configuration: for manifests and `environment.json`."""
    import torch

    return {
        "git_commit": _git_commit(),
        "versions": {name: _version(name) for name in RECORDED_PACKAGES},
        "threads": torch.get_num_threads(),
        "world_size": distributed.world_size(),
    }


def describe_environment() -> dict[str, Any]:
    """Where this process runs. No secrets: no arguments, and only harmless variables."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        **provenance(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "imports": modules_of(),
        "command": Path(sys.argv[0]).stem.rpartition(" ")[2] if nothing_under_way() else None,
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or "cpu",
        "num_devices": torch.cuda.device_count(),
        "variables": {k: os.environ[k] for k in RECORDED_VARIABLES if k in os.environ},
    }


_version = functools.cache(metadata.version)


@functools.cache
def _git_commit() -> str | None:
    """The commit of this source tree, `+` behind it when files differ; None outside a clone.

    It is asked for once: what is changed later is not what runs in this process.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    described = ["describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    git = subprocess.run(["git", "-C", str(root), *described], capture_output=True, text=True)
    return git.stdout.strip() or None
