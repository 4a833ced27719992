"""Engines such as vLLM and SGLang that generate in the place of this process (docs/serving.md)."""

from lactchain_extras.serving.policy import ServedActor, check_drift, drift
from lactchain_extras.serving.servers import record, sync

__all__ = ["ServedActor", "check_drift", "drift", "record", "sync"]
