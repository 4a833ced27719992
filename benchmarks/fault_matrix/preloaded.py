"""What the server of processes has imported: everything that any program needs."""

import importlib
import pkgutil

import accelerate  # noqa: F401
import peft  # noqa: F401
import transformers.trainer  # noqa: F401

import fault_matrix.programs  # noqa: F401
import lactchain
from lactchain.provenance import provenance

for module in pkgutil.walk_packages(lactchain.__path__, "lactchain."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError:
            continue  # it needs an extra that is not installed
provenance()  # it asks git, once
