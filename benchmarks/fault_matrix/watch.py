"""An audit hook: what a process does that a file of others may not make it do."""

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lactchain.runs.process import describe_environment

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
STARTS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")
NAMING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink")
CHANGES = (*NAMING, "os.link", "os.chmod", "os.truncate", "shutil.rmtree")
MOST_BYTES = 12 << 30
"""Of address space; the libraries alone map three of these twelve."""


@dataclass(frozen=True)
class Watch:
    """Notes in a file whatever happens outside of the folder that a process may work in.

    Attributes:
        inside: where it may write.
        outside: what it may not even read.
        notes: receives a line for each thing that it should not have done.
        module: a name that nothing good imports.
    """

    inside: Path
    outside: Path
    notes: Path
    module: str

    def __call__(self) -> None:
        """From now on, for as long as the process lives."""
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        os.environ["TMPDIR"] = str(self.inside)
        describe_environment()  # asks commands, once
        notes = os.open(self.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def hear(event: str, args: tuple[Any, ...]) -> None:
            if told := self._judge(event, args):
                os.write(notes, f"{event}: {told}\n".encode(errors="replace"))

        sys.addaudithook(hear)

    def _judge(self, event: str, args: tuple[Any, ...]) -> str:
        """What is wrong with an event; nothing where nothing is."""
        if event == "open" and not isinstance(args[0], int):
            path, _, flags = args
            if (flags or 0) & WRITING and self._is_elsewhere(path):
                return f"{path} for writing"
            return f"{path} for reading" if _within(path, self.outside) else ""
        if event in STARTS or event == "socket.connect":
            return repr(args)[:200]
        if event in CHANGES:
            return next((str(a) for a in args[:2] if self._is_elsewhere(a, parent=True)), "")
        if event == "import" and args[0] and str(args[0]).split(".")[0] == self.module:
            return str(args[0])
        if event == "pickle.find_class" and args[0] in ("os", "posix", "builtins", self.module):
            return repr(args)
        if event == "exec":  # code of a file that a run or a model came with
            file = getattr(args[0], "co_filename", "")
            return file if str(self.inside.parent.parent) in file else ""
        return ""

    def _is_elsewhere(self, path: Any, parent: bool = False) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        path = os.fsdecode(path)
        if not os.path.isabs(path) and parent:  # relative to a folder that is open already
            return False
        return not (_within(path, self.inside, parent) or path.startswith("/dev/"))


def _within(path: Any, folder: Path, parent: bool = False) -> bool:
    path = os.fsdecode(path)
    real = os.path.realpath(os.path.dirname(path) if parent else path)
    return real == str(folder) or real.startswith(f"{folder}/")
