"""A stand-in for the Hugging Face hub on this machine, which records what it is sent."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """What somebody has sent."""

    path: str
    token: str | None
    body: bytes


class Hub(ThreadingHTTPServer):
    """Takes an upload as the hub takes one of small files; answers 401 to any other token.

    Attributes:
        requests: all of them, in their order.
    """

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token, self.requests = token, []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def variables(self, home: Path, token: str) -> dict[str, str]:
        """Of a process that takes this for the hub."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(home),
            "HF_TOKEN": token,
        }

    def files(self) -> dict[str, bytes]:
        """What was committed."""
        lines = [r.body.splitlines() for r in self.requests if "/commit/" in r.path]
        values = (json.loads(line) for commit in lines for line in commit)
        return {
            v["value"]["path"]: base64.b64decode(v["value"]["content"])
            for v in values
            if v["key"] == "file"
        }


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # noqa: N802
        body = self.rfile.read(int(self.headers["Content-Length"]))
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        self.server.requests.append(Request(self.path, token, body))
        if token != self.server.token:
            self._send(401, {"error": "Invalid username or password."})
        elif self.path.endswith("/preupload/main"):
            paths = [file["path"] for file in json.loads(body)["files"]]
            files = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]
            self._send(200, {"files": files})
        elif "/commit/" in self.path:
            commit = {"commitOid": "0" * 40, "commitUrl": f"{self.server.address}/me/grid/commit/0"}
            self._send(200, commit | {"success": True, "hookOutput": ""})
        elif self.path == "/api/repos/create":
            self._send(200, {"url": f"{self.server.address}/me/grid", "name": "me/grid"})
        else:
            self._send(200, {"warnings": [], "errors": []})

    def _send(self, status: int, answer: dict) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        """Silent."""


@contextmanager
def serving(token: str) -> Iterator[Hub]:
    """A hub that serves until the end, and knows this one token."""
    with Hub(token) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()
