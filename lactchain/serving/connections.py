"""What the environment says of the way to servers: the key, proxies, certificates."""

import os
import re
from base64 import b64encode
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from lactchain.errors import ConfigError
from lactchain.settings import ServedConfig

if TYPE_CHECKING:
    import httpx2

KEY = "LACTCHAIN_SERVER_KEY"
"""The environment variable with the key of the servers; nothing writes it down."""

CONNECT_SECONDS = 10.0
TELLING = 8
"""Letters of a key that are hidden wherever they stand; fewer tell nobody anything."""


def connections(settings: ServedConfig) -> list["httpx2.Client"]:
    """A client for each request in flight: one with many connections looks at all of them.

    Raises:
        ConfigError: proxies or certificates are none; without their addresses, which may have a
            password.
    """
    import httpx2

    connect = min(CONNECT_SECONDS, settings.timeout_seconds)
    timeout = httpx2.Timeout(settings.timeout_seconds, connect=connect)
    try:
        trusted = httpx2.create_ssl_context()
    except OSError as error:
        raise ConfigError(
            f"SSL_CERT_FILE: expected a file of certificates, got another ({error}); correct it"
        ) from None
    try:
        return [httpx2.Client(timeout=timeout, verify=trusted) for _ in range(settings.in_flight)]
    except (ValueError, ImportError, httpx2.InvalidURL):
        raise ConfigError(
            "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY: expected addresses such as http://proxy:3128, "
            "got others; correct them, or name the servers in NO_PROXY"
        ) from None


def proxy_passwords() -> list[str]:
    """Those of the environment, as they are written and as they are sent (RFC 7617)."""
    found = []
    for address in getproxies().values():
        with suppress(ValueError):
            parts = urlsplit(address)
            if parts.password:
                sent = f"{unquote(parts.username or '')}:{unquote(parts.password)}"
                found += [parts.password, b64encode(sent.encode()).decode()]
    return found


def server_key() -> str:
    """The key of the servers, empty where there is none; `ConfigError` where no header takes it."""
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()) or set(key) & set(" '\"\\"):
        raise ConfigError(
            f"{KEY}: expected letters, digits and signs of one line, without spaces and quotes, "
            "got others; set it to the key alone"
        )
    return key


def traces(*secrets: str) -> re.Pattern[str] | None:
    """Finds what is secret, and its beginning where a quotation was cut in the middle of it."""
    beginnings = [
        re.escape(secret[:length])
        for secret in secrets
        for length in range(len(secret), min(len(secret), TELLING) - 1, -1)
        if secret
    ]
    return re.compile("|".join(beginnings)) if beginnings else None
