"""The answers of servers, taken for nothing but text until they are read."""

import json
import re
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from lactchain.errors import ServerError

if TYPE_CHECKING:
    import httpx2

LONGEST_ASKED_FOR = 600.0
"""Seconds that a `Retry-After` can make us wait."""
MOST_BYTES = 2**26
"""Of an answer; one of a million tokens has fewer."""
MOST_MARKUP = 10_000
"""Letters of a page that are looked at for words."""
NAME = re.compile("row-[0-9a-f]{16}")
"""What each request is called, in `X-Request-Id`; vLLM repeats it in the `id` of its answer."""


class Unfinished(Exception):
    """There is no answer yet, so that it is asked for again; readers of cut ones raise it too.

    Attributes:
        asked_for: the seconds that the server asks to wait for.
    """

    def __init__(self, problem: str, asked_for: float = 0.0) -> None:
        super().__init__(problem)
        self.asked_for = asked_for


class NotJSON(ValueError):
    """An answer is of another kind; the text says which."""


def whole(response: "httpx2.Response", late: float) -> str:
    """The text of an answer that comes in parts, of which each may be in time and all too much.

    Args:
        late: when it is given up, on `time.monotonic`.

    Raises:
        Unfinished: it has not come by then.
        ServerError: it is too long for an answer.
    """
    content = bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) > MOST_BYTES:
            raise ServerError(
                f"{response.url}: expected an answer of {MOST_BYTES:,} bytes at most, got more; "
                "give the address of the server itself as actor.served.urls"
            )
        if time.monotonic() > late:
            raise Unfinished(f"{len(content):,} bytes of an answer that did not end")
    return content.decode(errors="replace")


def own(text: str, name: str, address: str) -> str:
    """The answer, unless it says that it is the one to another request."""
    if (found := NAME.search(text)) and found[0] != name:
        raise ServerError(
            f"{address}: expected the answer to this request, got that to another; leave out "
            "the proxy that mixes them"
        )
    return text


def parsed(text: str) -> Any:
    """The JSON of an answer.

    Raises:
        Unfinished: it is cut.
        NotJSON: it is something else.
    """
    if not text.lstrip().startswith(("{", "[")):
        raise NotJSON(repr(one_line(text, 60)))
    try:
        return json.loads(text)
    except RecursionError:
        raise NotJSON("lists in lists without end") from None
    except ValueError:
        raise Unfinished("a cut answer") from None


def said(text: str) -> str:
    """What an error's body says: of JSON the message, of a page its text."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        page = text[:MOST_MARKUP]
        return re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    while isinstance(body, dict):
        found = [
            body[key] for key in ("error", "message", "error_message", "detail") if body.get(key)
        ]
        body = found[0] if found else json.dumps(body)
    return body if isinstance(body, str) else json.dumps(body)


def one_line(text: str, most: int) -> str:
    """The beginning of a text of somebody else's, without what would move on the screen."""
    seen = (letter if letter.isprintable() else " " for letter in text[:MOST_MARKUP])
    return " ".join("".join(seen).split())[:most]


def asked_wait(header: str | None) -> float:
    """The seconds that a `Retry-After` asks for, a number of them or a date (RFC 9110, 10.2.3)."""
    try:
        seconds = float(header or 0)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return 0.0
    return min(seconds, LONGEST_ASKED_FOR) if seconds > 0 else 0.0  # also of nan
