"""Text in and text out without a list of actions: spaces, transcripts, and what is said once.

Under the extractor `utterance` a completion is one action, whatever it says; under `json_list` it
is a list of such texts, which are played one after the other. There is no grammar to constrain, no
list of completions to rank, and no exact model.
"""

import logging
import string
from functools import cache
from operator import attrgetter

from gymnasium import spaces

from lactchain.environments.faults import AnyText
from lactchain.environments.views import TextView, describe_text

log = logging.getLogger(__name__)

LONGEST = 2**16
"""Characters that an observation has at most; of a longer one the oldest go."""

_BLOCKS = (
    (0x00A0, 0x017F),  # Latin with accents
    (0x0370, 0x03FF),  # Greek
    (0x2010, 0x2027),  # dashes, quotes, dots
    (0x2190, 0x21FF),  # arrows
    (0x2200, 0x22FF),  # mathematics
    (0x2500, 0x25FF),  # boxes and shapes
    (0x2600, 0x27BF),  # symbols, chessmen, cards
    (0x2B1B, 0x2B1C),  # squares
    (0x1F7E0, 0x1F7EB),  # coloured squares
)
CHARACTERS = frozenset(
    string.printable + "".join(chr(c) for low, high in _BLOCKS for c in range(low, high + 1))
)
"""What games write; others show as `?`."""

MAX_CHAINS = 100
"""Completions in an episode of a world that does not say, where no other number is given."""
SAID = spaces.Text(LONGEST, min_length=0, charset=CHARACTERS)
HEARD = AnyText(256, min_length=0, charset=string.printable)


def spoken_view() -> TextView:
    """The view of a world that speaks, and whose `success` says how its episode ended."""
    known = {"success": attrgetter("unwrapped.success"), "max_chains": MAX_CHAINS}
    return TextView((), "{observation}{feedback}", describe_text, **known)


def shown(text: str, world: str) -> str:
    """An observation in its space: unknown characters become `?`, and the oldest lines go."""
    letters = "".join(letter if letter in CHARACTERS else "?" for letter in text)
    if letters != text:
        say_once(f"{world}: characters that are neither letters nor drawn by games show as ?")
    if len(letters) > LONGEST:
        say_once(f"{world}: of observations over {LONGEST} characters the oldest part is left out")
    return letters[-LONGEST:]


@cache
def say_once(message: str) -> None:
    """A warning in the log, the first time in this process."""
    log.warning("%s", message)
