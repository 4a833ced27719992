"""Errors that people meet: one line with what, where, expected and got, and how to mend it.

Each class carries the exit code of a script that ends with it; `runs.process.launch` prints
the message and exits with that code.
"""


class LactChainError(Exception):
    """A failure whose message is meant for the person at the keyboard."""

    exit_code = 1


class ConfigError(LactChainError):
    """The configuration, or the run folder it points at, cannot be used."""

    exit_code = 2


class DataError(LactChainError):
    """A checkpoint, an adapter, a model or a data file is damaged or does not belong here."""

    exit_code = 3


class NoPairsError(DataError):
    """The completions to all states are worth the same, so that there is nothing to prefer.

    They `agree` where that is because to no state two of them read differently.
    """

    def __init__(self, message: str, agree: bool = False) -> None:
        super().__init__(message)
        self.agree = agree


class NonFiniteError(LactChainError):
    """A loss, gradient, reward or observation is NaN or infinite."""

    exit_code = 4


class DiskError(LactChainError):
    """Something could not be written; whatever writes files may raise it."""

    exit_code = 5


class EnvironmentFault(LactChainError):
    """An environment raised, hung, or broke Gymnasium's API."""

    exit_code = 6


class ProcessLost(LactChainError):
    """Another process of the launch has ended, and the work cannot go on without it."""

    exit_code = 6


class CollapseError(LactChainError):
    """What learns has stopped learning, and unlearns what it could."""

    exit_code = 7


class ServerError(LactChainError):
    """A server that generates is not there, refuses, or answers what cannot be used."""

    exit_code = 8


class Interrupted(LactChainError):
    """A signal asked the run to stop; its state is saved."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
