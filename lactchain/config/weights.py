"""The settings of tiny base models, which are built here."""

from dataclasses import dataclass
from typing import Annotated

from lactchain.config.bounds import AtLeast1, Bound, Bounded, Positive
from lactchain.config.settings import check


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
