"""Engines that work in the place of this process.

vLLM and SGLang generate (docs/serving.md), workers of Ray make whole files (docs/processes.md).
"""

import re
from importlib.util import find_spec
from typing import Any

from lactchain.errors import ConfigError
from lactchain.runs import distributed
from lactchain_extras.serving.policy import ServedActor, check_drift, drift_in
from lactchain_extras.serving.servers import record, sync

__all__ = ["ServedActor", "check_drift", "drift_in", "record", "sync", "workers"]


def workers(setting: str) -> Any:
    """The `ray_workers.Workers` of a setting, `ray:N`.

    Raises:
        ConfigError: it names none, Ray is not installed, or several processes share the work out.
    """
    if not re.fullmatch(r"ray:[1-9]\d{0,3}", setting):
        raise ConfigError(f"--workers: expected ray:N, N of at least 1, got {setting}")
    if find_spec("ray") is None:
        raise ConfigError("--workers: expected Ray; pip install 'lactchain[ray]' first")
    if (size := distributed.world_size()) > 1:
        what = f"a single process, got {size} of a launcher, which share the work out themselves"
        raise ConfigError(f"--workers: expected {what}; leave out either of the two")
    from lactchain_extras.serving.ray_workers import the_workers

    return the_workers(int(setting.partition(":")[2]))
