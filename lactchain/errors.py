"""Errors that people meet: one line with what, where, expected and got, and how to mend it.

Each class carries the exit code of a script that ends with it; `runs.process.launch` prints
the message and exits with that code.
"""


class LactChainError(Exception):
    """A failure whose message is meant for the person at the keyboard."""

    exit_code = 1

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        cls.exit_code = exit_code or cls.exit_code


class ConfigError(LactChainError, exit_code=2):
    """The configuration, or the run folder it points at, cannot be used."""


class DataError(LactChainError, exit_code=3):
    """A checkpoint, an adapter, a model or a data file is damaged or does not belong here."""


class NoPairsError(DataError):
    """The completions to all states are worth the same, so that there is nothing to prefer.

    They `agree` where that is because to no state two of them read differently.
    """

    def __init__(self, message: str, agree: bool = False) -> None:
        super().__init__(message)
        self.agree = agree


class NonFiniteError(LactChainError, exit_code=4):
    """A loss, gradient, reward or observation is NaN or infinite."""


class DiskError(LactChainError, exit_code=5):
    """Something could not be written; whatever writes files may raise it."""


class EnvironmentFault(LactChainError, exit_code=6):
    """An environment raised, hung, or broke Gymnasium's API."""


class ProcessLost(LactChainError, exit_code=6):
    """Another process of the launch has ended, and the work cannot go on without it."""


class CollapseError(LactChainError, exit_code=7):
    """What learns has stopped learning, and unlearns what it could."""


class ServerError(LactChainError, exit_code=8):
    """A server that generates is not there, refuses, or answers what cannot be used."""


class Interrupted(LactChainError):
    """A signal asked the run to stop; its state is saved."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
