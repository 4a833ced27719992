"""Signals: which ones end a process, and what a process does with them before it listens."""

import os
import signal
import sys
from os.path import abspath, basename, dirname, join, splitext

AT_ONCE = (signal.SIGTERM, signal.SIGINT)
STOPPING = (*AT_ONCE, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that a process saves after: besides Ctrl-C and SIGTERM that of a terminal that closes,
and those by which schedulers warn of a time limit. The first two, said again, end it at once."""
_PACKAGE = dirname(dirname(abspath(__file__)))
_SCRIPTS = [join(folder, "scripts") for folder in (_PACKAGE, dirname(_PACKAGE))]


def end_at_once() -> None:
    """Has every such signal end this process without a word, and with its exit code.

    A command that is stopped while it is still imported has nothing to save, and no stack trace
    that anybody wants to see.
    """
    for number in STOPPING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, lambda number, _: os._exit(128 + number))


def is_command() -> bool:
    """Whether the program of this process is a command of LactChain, by what started it."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # what `sys.argv` says while the module's package is imported
        return "lactchain" in sys.orig_argv
    return splitext(basename(program))[0] == "lactchain" or dirname(abspath(program)) in _SCRIPTS
