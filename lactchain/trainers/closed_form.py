"""A critic's head in closed form: ridge regression of returns on what the encoder makes of texts.

Gradient steps find in minutes, and worse, what is solved for here in a second. Source: Hoerl &
Kennard 1970, "Ridge regression"; the strength is chosen by cross-validation over whole episodes,
since the decisions of one correlate.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_FOLDS = 5
STRENGTHS = 10.0 ** torch.arange(2, -8, -1, dtype=torch.float64)
"""What is added to the eigenvalues of the features' scatter, in units of their mean; the strongest
first, which is taken where several are equally good."""


@dataclass(frozen=True)
class Solution:
    """A head, values = features · `weight` (D,) + `offset`, and how it does on what is left out."""

    weight: Tensor
    offset: float
    strength: float
    """One of `STRENGTHS`."""
    r2: float
    """Share of the variance of the returns in each fold that the heads of the others explain."""
    slope: float
    """Of the regression of those returns on those predictions; above 1 where these shrink."""

    def values(self, features: Tensor) -> Tensor:
        """Values (U,) of features (U, D)."""
        return features.double() @ self.weight + self.offset


class RidgeFolds:
    """The decompositions that heads for any targets follow from by a few products.

    Each of N decisions weighs the same, as in the loss of the gradient steps; the offset is not
    shrunk. `features` are (U, D) of U texts, `rows` (N,) which text each decision reads, and
    `folds` (N,) from 0 to `NUM_FOLDS` - 1, the same for all decisions of an episode.
    """

    def __init__(self, features: Tensor, rows: Tensor, folds: Tensor) -> None:
        self._features, self._rows, self._folds = features.double(), rows, folds
        self._counts = self._sums(torch.ones(len(rows)))
        scatters = [self._features.T @ (n[:, None] * self._features) for n in self._counts]
        whole, number = sum(scatters), self._counts.sum(dim=0)
        kept = [(number - n, whole - s) for n, s in zip(self._counts, scatters, strict=True)]
        self._parts = [_Part(self._features, *part) for part in [*kept, (number, whole)]]

    def solve(self, targets: Tensor) -> Solution:
        """The head for the targets (N,) of the decisions."""
        sums = self._sums(targets)
        total = sums.sum(dim=0)
        predictions = []
        for part, own in zip(self._parts, sums, strict=False):
            weights, offsets = part.heads(total - own)
            predictions.append(self._features @ weights + offsets)
        left_out = torch.stack(predictions)[self._folds, self._rows]  # (N, strengths)
        errors = (left_out - targets.double()[:, None]).square().mean(dim=0)
        best = int(errors.argmin())
        weights, offsets = self._parts[-1].heads(total)
        predicted, variance = left_out[:, best], targets.double().var(correction=0)
        return Solution(
            weights[:, best],
            float(offsets[best]),
            float(STRENGTHS[best]),
            float(1 - errors[best] / variance),
            float(torch.cov(torch.stack([predicted, targets.double()]))[0, 1] / predicted.var()),
        )

    def _sums(self, numbers: Tensor) -> Tensor:
        """Sums of N numbers in each fold and text, (folds, U)."""
        sums = torch.zeros(NUM_FOLDS, len(self._features), dtype=torch.float64)
        return sums.index_put_((self._folds, self._rows), numbers.double(), accumulate=True)


class _Part:
    """Decisions that heads are solved on: how often each text is read, (U,), and their scatter."""

    def __init__(self, features: Tensor, counts: Tensor, scatter: Tensor) -> None:
        self._features, self._number = features, counts.sum().clamp_min(1)
        self._mean = counts @ features / self._number
        centred = scatter - self._number * self._mean.outer(self._mean)
        self._eigenvalues, self._axes = torch.linalg.eigh(centred)

    def heads(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (D, S) and offsets (S,) by each strength, for the texts' sums (U,) of targets."""
        mean = sums.sum() / self._number
        along = self._axes.T @ (self._features.T @ sums - self._number * mean * self._mean)
        spread = self._eigenvalues.clamp_min(0)
        added = STRENGTHS * spread.mean().clamp_min(torch.finfo(torch.float64).tiny * 1e9)
        weights = self._axes @ (along[:, None] / (spread[:, None] + added))
        return weights, mean - self._mean @ weights
