"""Measures generation behind servers: whether it is that of the actor here, and how fast it asks.

python benchmarks/serving.py equality --episodes 1000
python benchmarks/serving.py idle --requests 5000
python benchmarks/serving.py slow --requests 3200
python benchmarks/serving.py rows --requests 3200
python benchmarks/serving.py bare --requests 3200
python benchmarks/serving.py text --url http://127.0.0.1:8000 --model weights/tiny-actor

equality: episodes of an untrained tiny actor on a 2x2 grid, free and constrained, behind an engine
of the tests (the project's own decoder over a real socket) of which 30 % of the requests fail, are
cut or delayed; they must equal the local actor's token for token. idle: requests a second of one
client whose server, a process of its own, answers the same at once. slow: the same server answers
after 200 ms; 64 requests in flight are 320 a second at most. rows: the same of a whole actor, which
makes prompts and checks answers. bare: the same of sockets that only write and read: what the
machine gives beside its other work. text: greedy answers of a server that
knows texts alone, such as `transformers serve weights/tiny-actor --device cpu`, in 100 states.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import SplitResult, urlsplit

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from engine_stand_in import Engine, serving
from script_setups import GRID, build_weights

from lactchain.config.settings import EnvironmentConfig, SamplerConfig, ServedConfig
from lactchain.data.episodes import sampled_episodes, sampled_states
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import make_language_env
from lactchain.models.actor import LanguageActor
from lactchain.models.loading import load_own_tokenizer
from lactchain.models.prompting import PromptTemplate
from lactchain_extras.serving.policy import ServedActor
from lactchain_extras.serving.transport import Transport, answers

FAULTS = 0.3
DELAY = 0.2
IN_FLIGHT = 64
CHOICE = {
    "index": 0,
    "text": '["move forward", "turn left"]',
    "finish_reason": "stop",
    "logprobs": {"token_logprobs": [-0.12345678901234] * 16},
    "token_ids": list(range(16)),
    "prompt_token_ids": list(range(100)),
}
"""What a canned server says."""
BODY = {"prompt": list(range(100)), "max_tokens": 64, "seed": 2**62, "temperature": 1.0}


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("what", choices=["equality", "idle", "slow", "rows", "bare", "text"])
    arguments.add_argument("--episodes", type=int, default=1000)
    arguments.add_argument("--requests", type=int, default=3200)
    arguments.add_argument("--url", default="http://127.0.0.1:8000")
    arguments.add_argument("--model", default="weights/tiny-actor")
    given = arguments.parse_args()
    gc.set_threshold(100_000, 20, 100)  # as in every script
    if given.what == "equality":
        for decoding in ("free", "constrained"):
            print(json.dumps(equality(decoding, given.episodes)))
    elif given.what == "text":
        print(json.dumps(greedy_texts(given.url, given.model)))
    elif given.what == "bare":
        print(json.dumps(bare(given.requests)))
    elif given.what == "rows":
        print(json.dumps(rows(given.requests)))
    else:
        print(json.dumps(requests(given.requests, DELAY if given.what == "slow" else 0.0)))


def equality(decoding: str, num_episodes: int) -> dict[str, float | str]:
    """Episodes of the served actor beside those of the local one."""
    env = make_language_env(GRID)
    episodes = sampled_episodes(env, num_episodes, seed=0)
    with TemporaryDirectory() as place:
        weights = build_weights(Path(place))
        config = SamplerConfig(str(weights / "actor"), max_new_tokens=8, decoding=decoding)
        here = Rollouts(GRID).play(LanguageActor.from_config(config, env.grammar), episodes)
        with serving(Engine(weights / "actor", env.grammar, faults=FAULTS)) as engine:
            served = replace(config, served=ServedConfig([engine.url]))
            actor, start = ServedActor.from_config(served, env.grammar), time.perf_counter()
            there = Rollouts(GRID).play(actor, episodes)
            seconds, asked = time.perf_counter() - start, engine.answered["/v1/completions"]
    same = sum(
        [a.token_ids for a in one.actions] == [a.token_ids for a in other.actions]
        and one.observations == other.observations
        for one, other in zip(here, there, strict=True)
    )
    distances = [
        np.abs(np.subtract(a.logprobs, b.logprobs)).max()
        for one, other in zip(here, there, strict=True)
        for a, b in zip(one.actions, other.actions, strict=False)
        if len(a.logprobs) == len(b.logprobs)
    ]
    return {
        "decoding": decoding,
        "num_episodes": num_episodes,
        "token_equal": same,
        "largest_distance_of_log_probabilities": float(max(distances)),
        "completions": sum(map(len, here)),
        "answered": asked,
        "seconds": seconds,
    }


def greedy_texts(url: str, model: str) -> dict[str, int]:
    """In how many states a server that knows texts alone says what the actor here does."""
    env = make_language_env(EnvironmentConfig(template="brief"))
    states = sampled_states(env, 100, seed=0)
    texts = [env.reset(options={"state": state})[0] for state in states]
    config = SamplerConfig(model, dtype="float32", temperature=0.0, max_new_tokens=32)
    here = LanguageActor.from_config(config, env.grammar).act(texts, range(100))
    served = replace(config, served=ServedConfig([url], dialect="text", in_flight=4))
    there = ServedActor.from_config(served, env.grammar).act(texts, range(100))
    pairs = list(zip(here, there, strict=True))
    return {
        "states": len(pairs),
        "equal": sum(a.text == b.text for a, b in pairs),
        "different_answers": len({a.text for a, _ in pairs}),
    }


def requests(count: int, delay: float) -> dict[str, float]:
    """The rate of one client that is told nothing but bodies."""
    with canned(delay, CHOICE) as url, closing(Transport([url])) as transport:

        def ask(number: int) -> None:
            answers([transport.post("/v1/completions", BODY, len, i) for i in range(number)])

        return rate(ask, count, delay)


def bare(count: int) -> dict[str, float]:
    """The rate of sockets that write a request as soon as they have read an answer."""
    body = json.dumps(BODY).encode()
    request = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def exchange(address: SplitResult, left: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for _ in left:
            writer.write(request)
            await reader.read(2**16)
        writer.close()

    async def ask(address: SplitResult, number: int) -> None:
        left = iter(range(number))
        await asyncio.gather(*(exchange(address, left) for _ in range(IN_FLIGHT)))

    with canned(DELAY, CHOICE) as url:
        return rate(lambda number: asyncio.run(ask(urlsplit(url), number)), count, DELAY)


def rows(count: int) -> dict[str, float]:
    """The rate of an actor behind a slow server: prompts, requests and checks."""
    env = make_language_env(GRID)
    text = env.reset(seed=0)[0]
    with TemporaryDirectory() as place:
        model = str(build_weights(Path(place)) / "actor")
        config = SamplerConfig(
            model, decoding="constrained", served=ServedConfig(["http://unused"])
        )
        tokenizer = load_own_tokenizer(config)
        said = env.grammar.render([0])
        ids = [*tokenizer(said, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        choice = CHOICE | {
            "text": said,
            "logprobs": {"token_logprobs": [-0.12345678901234] * len(ids)},
            "token_ids": ids,
            "prompt_token_ids": PromptTemplate.for_grammar(
                tokenizer, config.strategy, env.grammar
            ).encode(text),
        }
        with canned(DELAY, choice) as url:
            served = replace(config, served=ServedConfig([url]))
            actor = ServedActor(tokenizer, served, env.grammar, "base")
            return rate(lambda number: actor.act([text] * number, range(number)), count, DELAY)


def rate(ask: Callable[[int], object], count: int, delay: float) -> dict[str, float]:
    """Requests a second, and the processor seconds that each takes of this process."""
    ask(2 * IN_FLIGHT)  # opens the connections
    start, cpu = time.perf_counter(), time.process_time()
    ask(count)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {
        "delay_seconds": delay,
        "in_flight": IN_FLIGHT,
        "requests_per_second": count / seconds,
        "requests_per_cpu_second": count / cpu,
        "share_of_most": count / seconds * delay / IN_FLIGHT,
    }


@contextmanager
def canned(delay: float, choice: dict) -> Iterator[str]:
    """The address of a server that gives one answer to all, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=canned_server, args=(theirs, delay, choice), daemon=True)
    server.start()
    try:
        yield ours.recv()
    finally:
        server.terminate()
        server.join()


def canned_server(pipe: object, delay: float, choice: dict) -> None:
    """Answers every request with the same completion."""
    content = json.dumps({"id": "cmpl", "choices": [choice]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    answer = head.encode() + b"\r\n\r\n" + content

    class Canned(asyncio.Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            self.transport, self.waiting = transport, b""

        def data_received(self, data: bytes) -> None:
            self.waiting += data
            head, found, body = self.waiting.partition(b"\r\n\r\n")
            if not found:
                return
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            if len(body) >= length:
                self.waiting = body[length:]
                asyncio.get_running_loop().call_later(delay, self.transport.write, answer)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", 0)
        pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await server.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
