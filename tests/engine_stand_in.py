"""An engine that speaks vLLM's dialect over a real socket, and computes by the project's Decoder.

Rows that wait are decoded together, as engines do. On request it fails, cuts and delays. It takes
what vLLM 0.33.0 takes and no more (`engine_words`), and refuses in its words.
"""

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from engine_words import VLLM, VLLM_DEFAULTS, VLLM_LOAD, VLLM_TOKENIZE, VLLM_UNLOAD, amiss

from lactchain import ChainGrammar, LanguageActor, SamplerConfig
from lactchain_extras.serving.policy import pattern_of

BATCH = 64
CACHE = 'vllm:cache_config_info{enable_prefix_caching="True"} 1.0'
KNOWN = {"/v1/completions": VLLM, "/tokenize": VLLM_TOKENIZE}
KNOWN |= {"/v1/load_lora_adapter": VLLM_LOAD, "/v1/unload_lora_adapter": VLLM_UNLOAD}
"""What is taken at each path."""
IN_PLACE = "If you want to load the adapter in place, set 'load_inplace' to True."
REASONS = {200: "OK", 429: "Too Many Requests", 500: "Internal Server Error"}
ONE_AT_A_TIME = threading.Lock()
"""Loading a model changes what is global, such as the type of new tensors."""
Answer = tuple[int, dict[str, str], bytes]


def answer(status: int, body: Any, **headers: str) -> Answer:
    """An answer in JSON, or as a text."""
    content = body if isinstance(body, str) else json.dumps(body)
    return status, headers, content.encode()


def refusal(status: int, words: str) -> Answer:
    return answer(status, {"error": {"message": words, "type": "BadRequestError", "code": status}})


class Server:
    """HTTP/1.1 over a socket; a subclass says what is answered."""

    url = ""  # where it is, while it serves

    async def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        """The answer to a request; None: the connection breaks."""
        raise NotImplementedError

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                parts = (line.partition(":") for line in lines)
                headers = {name.lower(): value.strip() for name, _, value in parts}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                replied = await self.answer(first.split()[1], headers, body)
                if replied is None:
                    break
                status, more, content = replied
                kind = "application/json" if content[:1] in (b"{", b"[") else "text/html"
                told = {"Content-Type": kind, "Content-Length": str(len(content)), **more}
                top = [f"HTTP/1.1 {status} {REASONS.get(status, '-')}"]
                top += [f"{name}: {value}" for name, value in told.items()]
                writer.write("\r\n".join([*top, "", ""]).encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()


@dataclass
class Script(Server):
    """Gives the answers of a list in turn, the last one for ever."""

    answers: list[Answer | None]
    asked: int = 0

    async def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


class Silent(Script):
    """Takes every request, and answers none."""

    async def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        self.asked += 1
        await asyncio.sleep(3600)


@dataclass
class Engine(Server):
    """What the server does."""

    model: Path  # the folder of the base
    grammar: ChainGrammar  # of constrained completions
    faults: float = 0.0  # share of the requests that fail, are cut or delayed
    key: str = ""  # that requests must show, if any
    max_rank: int = 64  # of adapters; 0: it takes none
    flags: dict[str, Any] = field(default_factory=dict)  # that it says it was started with
    changes: dict[str, Any] = field(default_factory=dict)  # to each choice, as of a broken engine
    adapters: dict[str, str] = field(default_factory=dict)  # the folders of those loaded, by name
    log: list[str] = field(default_factory=list)  # what was loaded, and unloaded
    answered: Counter[str] = field(default_factory=Counter)  # how many requests, by path

    def __post_init__(self) -> None:
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[Answer]]] = []
        self._chance = random.Random(0)
        self._actor = cache(self._load)

    async def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        """The answer of an engine, or a fault."""
        fault = self._chance.random() < self.faults and path != "/v1/models"
        kind = self._chance.choice(["429", "500", "503", "break", "cut", "delay"]) if fault else ""
        if kind == "delay":
            await asyncio.sleep(0.03)
        elif kind == "429":
            return answer(429, "slow down", **{"Retry-After": "0.02"})
        elif kind.isdigit():
            return answer(int(kind), "<html><body>bad gateway</body></html>")
        elif kind == "break":
            return None
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            return refusal(401, f"wrong key: {headers.get('authorization')}")
        self.answered[path] += 1
        status, more, content = await self._route(path, body)
        return status, more, content[: len(content) // 2] if kind == "cut" else content

    async def _route(self, path: str, body: bytes) -> Answer:
        asked = json.loads(body) if body else {}
        if wrong := path in KNOWN and amiss(asked, KNOWN[path]):
            return refusal(400, wrong)
        if path == "/v1/completions":
            if missing := VLLM_DEFAULTS - asked.keys():
                return refusal(400, f"{min(missing)} would be that of generation_config.json")
            return await self._completion(asked)
        routes = {
            "/v1/models": self._models, "/tokenize": self._tokenize,
            "/v1/load_lora_adapter": self._load_adapter,
            "/v1/unload_lora_adapter": self._unload_adapter,
            "/health": lambda _: answer(200, ""), "/metrics": lambda _: answer(200, CACHE),
            "/version": lambda _: answer(200, {"version": "0.stand-in"}),
            "/server_info?config_format=json": lambda _: answer(200, self.flags),
        }  # fmt: skip
        known = path in routes and (self.max_rank or "lora" not in path)
        return routes[path](asked) if known else answer(404, {"detail": "Not Found"})

    async def _completion(self, asked: dict[str, Any]) -> Answer:
        """The answer to a row, once those that wait beside it are decoded too."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(0.001, self._decode)
        return await future

    def _models(self, _: dict[str, Any]) -> Answer:
        base = {"id": "base", "root": str(self.model), "parent": None, "max_model_len": 512}
        adapters = [{"id": n, "root": p, "parent": "base"} for n, p in self.adapters.items()]
        return answer(200, {"object": "list", "data": [base, *adapters]})

    def _load_adapter(self, asked: dict[str, Any]) -> Answer:
        name, folder = asked["lora_name"], asked["lora_path"]
        if name in self.adapters:
            return refusal(400, f"The lora adapter '{name}' has already been loaded. {IN_PLACE}")
        if not Path(folder).is_dir():
            return refusal(404, f"Loading lora {name} failed: No adapter found for {folder}")
        rank = json.loads((Path(folder) / "adapter_config.json").read_text())["r"]
        if rank > self.max_rank:
            return refusal(500, f"LoRA rank {rank} is greater than max_lora_rank {self.max_rank}.")
        assert f"load {name}" not in self.log or f"unload {name}" in self.log
        self.adapters[name] = folder
        self.log.append(f"load {name}")
        return answer(200, f"Success: LoRA adapter '{name}' added successfully.")

    def _unload_adapter(self, asked: dict[str, Any]) -> Answer:
        name = asked["lora_name"]
        if not name:
            return refusal(400, "'lora_name' needs to be provided to unload a LoRA adapter.")
        if self.adapters.pop(name, None) is None:
            return refusal(404, f"The lora adapter '{name}' cannot be found.")
        self.log.append(f"unload {name}")
        return answer(200, f"Success: LoRA adapter '{name}' removed successfully.")

    def _tokenize(self, asked: dict[str, Any]) -> Answer:
        tokenizer = self._actor(None, None, 1.0, 8).tokenizer
        ids = tokenizer(asked["prompt"], add_special_tokens=asked["add_special_tokens"])
        return answer(200, {"tokens": ids["input_ids"], "count": len(ids["input_ids"])})

    def _decode(self) -> None:
        """Answers the rows that wait."""
        rows, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._decode)
        alike: dict[tuple, list] = {}
        for asked, future in rows:
            pattern = asked.get("structured_outputs", {}).get("regex")
            kind = (asked["model"], pattern, asked["temperature"], asked["max_tokens"])
            alike.setdefault(kind, []).append((asked, future))
        for (model, *kind), group in alike.items():
            for (_, future), reply in zip(group, self._replies(model, kind, group), strict=True):
                if not future.done():
                    future.set_result(reply)

    def _replies(self, model: str, kind: list, group: list) -> list[Answer]:
        if model != "base" and model not in self.adapters:
            return [refusal(404, f"The model `{model}` does not exist.")] * len(group)
        try:
            with ONE_AT_A_TIME:
                return self._complete(self._actor(self.adapters.get(model), *kind), group)
        except Exception as error:  # noqa: BLE001  - the client is told of every kind
            return [refusal(400, repr(error))] * len(group)

    def _complete(self, actor: LanguageActor, group: list) -> list[Answer]:
        prompts, seeds = ([asked[key] for asked, _ in group] for key in ("prompt", "seed"))
        assert all(0 <= seed < 2**63 for seed in seeds)
        said = zip(prompts, actor.decoder.sample(prompts, seeds), strict=True)
        choices = (self._choice(actor, prompt, completion) for prompt, completion in said)
        return [answer(200, {"id": "cmpl", "choices": [choice]}) for choice in choices]

    def _choice(self, actor: LanguageActor, prompt: list[int], completion: Any) -> dict[str, Any]:
        ids = completion.token_ids
        spoken = ids[:-1] if completion.stop_reason == "stop" else ids
        told = {"token_ids": list(ids), "prompt_token_ids": prompt, "index": 0}
        told |= {"text": actor.tokenizer.decode(spoken), "finish_reason": completion.stop_reason}
        return told | {"logprobs": {"token_logprobs": list(completion.logprobs)}} | self.changes

    def _load(
        self, adapter: str | None, pattern: str | None, temperature: float, max_tokens: int
    ) -> LanguageActor:
        assert pattern in (None, pattern_of(self.grammar)), pattern
        config = SamplerConfig(
            str(self.model), adapter=adapter, temperature=temperature, max_new_tokens=max_tokens,
            decoding="free" if pattern is None else "constrained",
        )  # fmt: skip
        return LanguageActor.from_config(config, self.grammar)


@contextmanager
def serving(engine: Server, port: int = 0, certificate: Any = None) -> Iterator[Any]:
    """The server, at its `url` until the end; port 0 is a free one. With an SSL context: https."""
    loop, writers = asyncio.new_event_loop(), []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.add(loop.create_task(engine._connection(reader, writer)))

    tasks: set[asyncio.Task[None]] = set()
    listening = asyncio.start_server(accept, "127.0.0.1", port, limit=2**20, ssl=certificate)
    server = loop.run_until_complete(listening)
    scheme = "http" if certificate is None else "https"
    engine.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield engine
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server, writers), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _stop(server: asyncio.Server, writers: list[asyncio.StreamWriter]) -> None:
    """Ends every connection, begun or not, and waits until its socket is closed.

    asyncio drops the socket of a connection that it has accepted when the server is closed, or the
    task cancelled, before it has a transport. So nothing is accepted any more, then what is has its
    transport a turn of the loop later, and only then does the rest end.
    """
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening)
    await asyncio.sleep(0)
    server.close()
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    for writer in writers:
        writer.transport.abort()
        with suppress(OSError):  # what ended it before, if anything
            await writer.wait_closed()
    await server.wait_closed()
