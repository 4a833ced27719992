"""Weights and their cards on their way to the hub and back."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from lactchain.config.parsing import parse
from lactchain.config.settings import RunConfig
from lactchain.errors import ConfigError
from lactchain.runs import process
from lactchain.storage.manifests import write_manifest
from lactchain_extras.stages import export
from lactchain_extras.stages.export import ExportConfig, push

COMMIT = "0" * 40
REFUSAL = {"error": "Invalid username or password."}


class Hub(ThreadingHTTPServer):
    """Takes an upload as the hub takes one of small files; answers 401 to any other token.

    Attributes:
        requests: the paths that something was sent to, in their order.
        private: whether its one repository is; None as long as there is none.
        files: what lies in it.
    """

    def __init__(self, token: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.token, self.private = token, None
        self.requests: list[str] = []
        self.files: dict[str, bytes] = {}
        self.address = f"http://127.0.0.1:{self.server_port}"

    def stand_in(self, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
        """Lets this process take it for the hub."""
        files = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", self.address + files)
        monkeypatch.setattr(constants, "ENDPOINT", self.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", token)

    def commit(self, lines: list[bytes]) -> None:
        """Adds and deletes files."""
        for line in map(json.loads, lines):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.files[line["value"]["path"]] = content
            elif line["key"] == "deletedFile":
                del self.files[line["value"]["path"]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # noqa: N802
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hub = self.server
        hub.requests.append(self.path)
        if not self.has_token():
            self.send(401, REFUSAL)
        elif self.path.endswith("/preupload/main"):
            paths = [file["path"] for file in json.loads(body)["files"]]
            files = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]
            self.send(200, {"files": files})
        elif "/commit/" in self.path:
            hub.commit(body.splitlines())
            commit = {"commitOid": COMMIT, "commitUrl": f"{hub.address}/me/grid/commit/0"}
            self.send(200, commit | {"success": True, "hookOutput": ""})
        elif self.path != "/api/repos/create":
            self.send(200, {"warnings": [], "errors": []})
        else:
            is_there = hub.private is not None
            if not is_there:
                hub.private = json.loads(body)["visibility"] == "private"
            about = {"url": f"{hub.address}/me/grid", "name": "me/grid"}
            self.send(409 if is_there else 200, about)

    def do_GET(self) -> None:  # noqa: N802
        path, files = self.path.partition("?")[0], self.server.files
        if not self.has_token():
            self.send(401, REFUSAL)
        elif path == "/api/models/me/grid":
            siblings = [{"rfilename": name} for name in files]
            about = {"id": "me/grid", "private": self.server.private, "siblings": siblings}
            self.send(200, about)
        elif path == "/api/models/me/grid/tree/main":
            listed = [{"path": name, "size": len(content)} for name, content in files.items()]
            self.send(200, [file | {"type": "file", "oid": "0"} for file in listed])
        else:
            content = files[path.removeprefix("/me/grid/resolve/main/")]
            tag = f'"{hashlib.sha256(content).hexdigest()}"'
            self.answer(200, content, {"ETag": tag, "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def has_token(self) -> bool:
        return self.headers["Authorization"] == f"Bearer {self.server.token}"

    def send(self, status: int, told: object) -> None:
        self.answer(status, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def serving(token: str) -> Iterator[Hub]:
    """A hub that serves until the end, and knows this one token."""
    with Hub(token) as hub:
        thread = threading.Thread(target=hub.serve_forever, args=[0.02])
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def test_an_export_is_published_on_request_and_the_token_nowhere(runs, monkeypatch, caplog):
    token, folder = "hf_" + "secret" * 5, runs / "export_all/model"
    caplog.set_level("INFO")
    config = ["--config", str(runs / "export_all/config.yaml")]
    with serving(token) as hub:
        hub.stand_in(monkeypatch, token)
        export.main(parse(ExportConfig, config))
        assert hub.requests == []
        export.main(parse(ExportConfig, [*config, "--push_to_hub", "me/grid"]))
        assert hub.requests[0] == "/api/repos/create" and hub.private
        assert hub.requests[-1] == "/api/models/me/grid/commit/main"
        assert hub.files == {file.name: file.read_bytes() for file in folder.iterdir()}
    assert f"{folder}: uploaded to {hub.address}/me/grid" in caplog.text
    assert not [f for f in runs.rglob("*") if f.is_file() and token.encode() in f.read_bytes()]
    assert token not in caplog.text


def test_what_a_hub_refuses_is_told_in_one_line(tmp_path, monkeypatch):
    with serving("hf_right") as hub:
        hub.stand_in(monkeypatch, "hf_wrong")
        with pytest.raises(ConfigError, match="push_to_hub: .*me/grid, got: .*401") as refusal:
            push(tmp_path, "me/grid")
    (line,) = str(refusal.value).splitlines()
    assert "give the same command again" in line and "hf_wrong" not in line


def exported(folder: Path, *names: str) -> Path:
    """A folder of such files, whole."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(name)
    write_manifest(folder, {})
    return folder


def test_who_reads_an_upload_is_said_and_a_public_one_is_asked_for(tmp_path, monkeypatch, caplog):
    folder = exported(tmp_path / "model", "weights")
    caplog.set_level("INFO", "lactchain")
    with serving("hf_right") as hub:
        hub.stand_in(monkeypatch, "hf_right")
        hub.private = False
        with pytest.raises(ConfigError, match="expected a private .* which everybody can read"):
            push(folder, "me/grid")
        assert hub.files == {} and not caplog.messages
        push(folder, "me/grid", public=True)
        assert hub.files.keys() == {"weights", "manifest.json"} and not hub.private
        assert caplog.messages[0].endswith("uploading to me/grid, which everybody can read")
        hub.private = True
        push(folder, "me/grid")
        assert caplog.messages[2].endswith("uploading to me/grid, a private repository")
        hub.private = None
        push(folder, "me/grid", public=True)
        assert not hub.private


def test_an_upload_deletes_what_an_earlier_one_left_and_nothing_else(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "lactchain")
    with serving("hf_right") as hub:
        hub.stand_in(monkeypatch, "hf_right")
        push(exported(tmp_path / "one", "shard-[1]", "shard-1", "same"), "me/grid")
        hub.files |= {"theirs": b"", "shard-2": b"", "README.md": b""}
        push(exported(tmp_path / "two", "same", "whole"), "me/grid")
        theirs = {"theirs", "shard-2", "README.md"}
        assert hub.files.keys() == {"same", "whole", "manifest.json", *theirs}
        assert caplog.messages[-2].endswith("; deleting there: shard-1, shard-[1]")
        hub.files["manifest.json"] = b"{}"  # somebody else's
        push(exported(tmp_path / "three", "other"), "me/grid")
        assert hub.files.keys() == {"other", "same", "whole", "manifest.json", *theirs}


def test_a_dry_run_uploads_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(process, "_dry_run", True)
    with serving("hf_right") as hub:
        hub.stand_in(monkeypatch, "hf_right")
        run = RunConfig(str(tmp_path / "run"))
        assert export.main(ExportConfig(run, push_to_hub="me/grid")) == {}
        assert hub.requests == [] and not (tmp_path / "run").exists()
    assert "nothing was made" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["model", "user/a--b", "user/x.git", "user/-x", "a/b/c"])
def test_a_name_that_the_hub_could_not_have_is_refused_before_all_work(name):
    with pytest.raises(ValueError, match="push_to_hub: expected a name such as user/model"):
        ExportConfig(push_to_hub=name)
