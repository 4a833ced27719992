"""What an observation remembers of an episode: the newest of what was said and answered."""

from __future__ import annotations

import warnings

_BREAK = "\n"
_TOO_LONG = (
    "history: expected texts of at most {} characters; of longer ones the oldest observations and"
    " answers are left out: set history to the number to keep, or max_text_length of LanguageEnv"
    " to more"
)


class History:
    """Observations and answers, interleaved, the newest last.

    Args:
        limit: how many are kept; 0: all.
        max_length: longest text, in characters.
    """

    def __init__(self, limit: int, max_length: int) -> None:
        self.limit = limit
        self.max_length = max_length
        self._items: list[str] = []

    def add(self, item: str) -> None:
        """Appends one; the oldest leave."""
        self._items.append(item)
        if self.limit:
            del self._items[: -self.limit]

    def clear(self) -> None:
        """Forgets everything."""
        self._items.clear()

    def text(self) -> tuple[str, int]:
        """All that is kept, each on lines of its own, and how many of the oldest it lacks.

        Warns where what is kept is longer than a text may be.
        """
        *earlier, text = self._items
        for number, item in enumerate(reversed(earlier)):
            longer = f"{item.removesuffix(_BREAK)}{_BREAK}{text}"
            if len(longer) > self.max_length:
                warnings.warn(_TOO_LONG.format(self.max_length), stacklevel=4)
                return text, len(earlier) - number
            text = longer
        return text, 0
