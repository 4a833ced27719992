"""Refuses connections that leave this machine, in the tests and in every Python they start.

Python imports a module of this name at start-up when its folder is on PYTHONPATH; `conftest.py`
puts it there for child processes and imports it for its own.
"""

import ipaddress
import socket

_connect, _connect_ex = socket.socket.connect, socket.socket.connect_ex
_getaddrinfo = socket.getaddrinfo


def _is_local(host):
    try:
        return host in (None, "", "localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == socket.gethostname()


def _check(connection, address):
    if connection.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
        raise RuntimeError(f"tests may not reach {address}")


def _guarded_connect(self, address):
    _check(self, address)
    return _connect(self, address)


def _guarded_connect_ex(self, address):
    _check(self, address)
    return _connect_ex(self, address)


def _guarded_getaddrinfo(host, *args, **kwargs):
    if not _is_local(host):
        raise RuntimeError(f"tests may not resolve {host!r}")
    return _getaddrinfo(host, *args, **kwargs)


socket.socket.connect, socket.socket.connect_ex = _guarded_connect, _guarded_connect_ex
socket.getaddrinfo = _guarded_getaddrinfo
