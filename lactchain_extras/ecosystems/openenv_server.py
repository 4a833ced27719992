"""Serves an environment by OpenEnv's protocol, so that other trainers play it by a URL.

`/ws` is a session: messages and replies are those of `sessions.Session`. Beside it: `/health`,
`/metadata`, `/schema`, `/manifest` (floors and optimum), and OpenEnv's Task API, which numbers the
start states. OpenEnv's `/reset` and `/step` over plain HTTP are not there: each request would meet
a new environment, so that no episode could be played by them.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from socket import create_server, socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.language import make_language_env
from lactchain.errors import ConfigError
from lactchain_extras.ecosystems.manifest import manifest
from lactchain_extras.ecosystems.sessions import Session
from lactchain_extras.ecosystems.tasks import task_states

TEXT = {"type": "string"}
SCHEMA = {
    "action": {
        "title": "CompletionAction",
        "type": "object",
        "properties": {"text": TEXT | {"description": "the completion: a chain of actions"}},
        "required": ["text"],
    },
    "observation": {
        "title": "TextObservation",
        "type": "object",
        "properties": {"text": TEXT} | dict.fromkeys(("truncated", "success"), {"type": "boolean"}),
        "required": ["text", "truncated"],
    },
    "state": {
        "title": "EpisodeState",
        "type": "object",
        "properties": {"episode_id": TEXT, "step_count": {"type": "integer"}, "state": {}},
    },
}
TYPES = {"train": "train", "test": "test"}


class Served:
    """A world, and its sessions.

    Args:
        config: of the environment; each session makes one of its own.
        max_sessions: at once; one more is told that there is no room.
    """

    def __init__(self, config: EnvironmentConfig, max_sessions: int = 64) -> None:
        self.config, self.max_sessions = config, max_sessions
        self.name = config.id.rpartition("/")[2].partition("-v")[0]
        env = make_language_env(config)
        self.manifest = manifest(config, env)
        self._splits = task_states(env)
        self.tasks = {
            split: [_task(split, row) for row in enumerate(states)]
            for split, states in self._splits.items()
        }
        self._idle = [env]
        self._num_sessions = 0

    def app(self) -> Starlette:
        """The application, for any ASGI server."""
        told: dict[str, Any] = {
            "/health": {"status": "healthy"},
            "/metadata": {"name": self.name, "description": f"{self.config.id}, in words"},
            "/schema": SCHEMA,
            "/manifest": self.manifest,
            "/list_environments": [self.name],
            f"/{self.name}/splits": [{"name": n, "type": TYPES[n]} for n in self.tasks],
        }
        asked = {
            "tasks": lambda tasks, _: {"tasks": tasks, "env_name": self.name},
            "num_tasks": lambda tasks, _: {"num_tasks": len(tasks)},
            "task": lambda tasks, data: {"task": tasks[data["index"]]},
            "task_range": lambda tasks, data: {
                "tasks": tasks[slice(data.get("start"), data.get("stop"))]
            },
        }
        routes = [Route(path, _telling(content)) for path, content in told.items()]
        routes += [
            Route(f"/{self.name}/{path}", self._answering(answer), methods=["POST"])
            for path, answer in asked.items()
        ]
        return Starlette(routes=[*routes, WebSocketRoute("/ws", self._play)])

    async def _play(self, websocket: WebSocket) -> None:
        """One session, from its first message to its last."""
        await websocket.accept()
        if self._num_sessions >= self.max_sessions:
            full = f"all {self.max_sessions} sessions are taken"
            data = {"message": full, "code": "CAPACITY_REACHED", "max_sessions": self.max_sessions}
            await websocket.send_text(json.dumps({"type": "error", "data": data}))
            await websocket.close()
            return
        env = self._idle.pop() if self._idle else make_language_env(self.config)
        self._num_sessions += 1
        session = Session(env, self._splits)
        try:
            while (message := await websocket.receive())["type"] == "websocket.receive":
                said = message.get("text") or (message.get("bytes") or b"").decode(errors="replace")
                reply = session.answer(said)
                if reply is None:
                    await websocket.close()
                    break
                await websocket.send_text(reply)
        except WebSocketDisconnect:
            pass
        finally:
            self._num_sessions -= 1
            self._idle.append(env)

    def _answering(self, answer: Callable) -> Callable:
        async def endpoint(request: Request) -> JSONResponse:
            try:
                data = await request.json()
                tasks = self.tasks[data["split"]]
                return JSONResponse(answer(tasks, data))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                detail = f"expected a split of {sorted(self.tasks)} and its tasks, got {error!r}"
                raise HTTPException(400, detail) from error

        return endpoint


def serve(
    config: EnvironmentConfig, host: str, port: int, max_sessions: int, say: Callable
) -> None:
    """Serves until Ctrl-C, or SIGTERM.

    Args:
        port: 0 takes one that is free.
        say: is told one line, once the world can be reached.

    Raises:
        ConfigError: there is no such world, or the port is taken.
    """
    served = Served(config, max_sessions)
    listening = _listen(host, port)
    url = f"http://{host}:{listening.getsockname()[1]}"
    count = sum(map(len, served.tasks.values())) or "seeds for"
    server = uvicorn.Server(
        uvicorn.Config(
            served.app(),
            log_level="warning",
            lifespan="off",
            ws="websockets-sansio",
            ws_per_message_deflate=False,  # texts are short, and compressing takes longer
            timeout_graceful_shutdown=1,
        )
    )
    say(f"{config.id} at {url}: {count} tasks, {max_sessions} sessions at most; Ctrl-C ends it")
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket:
    try:
        return create_server((host, port), backlog=1024)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"port: cannot listen at {host}:{port} ({error}); take another, or 0 for a free one"
        ) from error


def _task(split: str, row: tuple[int, Any]) -> dict[str, Any]:
    """What is told of a task before it is played."""
    index, state = row
    return {"id": f"{split}-{index}", "index": index, "split": split, "state": state}


def _telling(content: Any) -> Callable:
    async def endpoint(request: Request) -> JSONResponse:
        return JSONResponse(content)

    return endpoint
