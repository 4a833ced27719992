"""How fast a served world is, and that episodes over the wire are those in process.

python benchmarks/ecosystems.py --sessions 64 --steps 100 --episodes 10000

Server and client share one core (`--core`), so that the rate is that of both. The CPU time of both
is told too, since other programs may want that core. Then, on all cores, 64 sessions of a world
that waits 10 ms a step, and of one that computes for as long, beside one session of it, on one and
on two processes; and rollouts in the first, beside those of one episode at a time.
"""

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gymnasium as gym
import websockets
from measuring import ROOT, command_line, environment

from lactchain.config.settings import EnvironmentConfig
from lactchain.data.episodes import Episode
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import make_language_env
from lactchain.environments.scripted import RandomChains
from lactchain.worlds.gridworld import GridWorld
from lactchain_extras.stages.serve import ServeConfig


class Slow(GridWorld):
    """The grid, where each step waits, or computes, for some seconds."""

    def __init__(self, waits: float = 0.0, computes: float = 0.0) -> None:
        super().__init__()
        self.waits, self.computes = waits, computes

    def step(self, action: int) -> Any:
        """As the grid, later."""
        time.sleep(self.waits)
        end = time.thread_time() + self.computes
        while time.thread_time() < end:
            pass
        return super().step(action)


gym.register("benchmark/Slow-v0", entry_point=Slow)


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """The URL of a world in a process of its own."""
    command = [sys.executable, "-m", "lactchain", "serve", "--port", "0", *words]
    env = environment(ROOT / "benchmarks")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        yield re.findall(r"http://[\d.]+:\d+", server.stdout.readline())[0]
        server.send_signal(signal.SIGINT)


async def session(url: str, number: int, chains: list[str], num_steps: int) -> None:
    """So many completions of one player, episode after episode."""
    async with websockets.connect(f"ws{url[4:]}/ws", compression=None) as socket:

        async def ask(kind: str, data: dict) -> dict:
            await socket.send(json.dumps({"type": kind, "data": data}))
            return json.loads(await socket.recv())["data"]

        done = True
        for step in range(num_steps):
            if done:
                await ask("reset", {"seed": 1000 * number + step})
            reply = await ask("step", {"text": chains[(37 * number + step) % len(chains)]})
            done = reply["done"]


def rate(url: str, num_sessions: int, num_steps: int, most: int = 9) -> float:
    """Completions, of at most so many actions, per second of so many sessions at once."""
    policy = RandomChains(make_language_env(EnvironmentConfig(max_chain_length=most)).grammar)
    chains = [policy.complete("", seed) for seed in range(1000)]

    async def all_sessions() -> None:
        players = (session(url, n, chains, num_steps) for n in range(num_sessions))
        await asyncio.gather(*players)

    start = time.perf_counter()
    asyncio.run(all_sessions())
    return num_sessions * num_steps / (time.perf_counter() - start)


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def measure_rate(num_sessions: int, num_steps: int) -> None:
    def run(steps: int) -> tuple[float, float]:
        before = cpu_seconds()
        with serving("--config", "gridworld_tiny", "--max_sessions", str(num_sessions)) as url:
            found = rate(url, num_sessions, steps)
        return found, cpu_seconds() - before

    _, idle = run(1)  # what it costs to start both
    found, spent = run(num_steps + 1)
    per_second = num_sessions * num_steps / (spent - idle)
    print(f"{num_sessions} sessions, server and client on one core: {found:,.0f} steps/s")
    print(f"per second of CPU time, of both together: {per_second:,.0f} steps")


def measure_equality(num_episodes: int) -> None:
    here = EnvironmentConfig()
    policy = RandomChains(make_language_env(here).grammar)
    equal = chains = 0
    start = time.perf_counter()
    with serving() as url:
        there = Rollouts(EnvironmentConfig(f"openenv:{url}"), 16)
        in_process = Rollouts(here, 16)
        for first in range(0, num_episodes, 500):
            episodes = [*map(Episode, range(first, min(first + 500, num_episodes)))]
            both = zip(in_process.play(policy, episodes), there.play(policy, episodes), strict=True)
            for one, other in both:
                equal += one == replace(other, env_id=one.env_id)
                chains += len(one)
        for env in there._first_envs(16):
            env.close()
    seconds = time.perf_counter() - start
    print(f"{equal:,} of {num_episodes:,} episodes over the wire equal those in process,")
    print(f"seed by seed, texts, rewards, flags and infos: {chains:,} chains in {seconds:.0f} s")


def measure_slow(seconds: float, num_sessions: int, num_steps: int) -> None:
    """Rates of many sessions over that of one, of a world that waits and of one that computes."""
    for kind, processes in (("waits", 1), ("waits", 2), ("computes", 1), ("computes", 2)):
        words = ["--environment.id", "ecosystems:benchmark/Slow-v0"]
        words += ["--environment.kwargs", json.dumps({kind: seconds})]
        words += ["--environment.max_chain_length", "1", "--num_processes", str(processes)]
        with serving(*words) as url:
            alone, many = rate(url, 1, 2 * num_steps, 1), rate(url, num_sessions, num_steps, 1)
            print(f"a step that {kind} for {1000 * seconds:.0f} ms, {processes} processes:", end="")
            print(f" {num_sessions} sessions over one: {many / alone:.2f} x ({alone:.0f}/s alone)")
            if kind == "waits":
                took = []
                for count in (1, num_sessions):
                    world = EnvironmentConfig(f"openenv:{url}", max_chain_length=1)
                    rollouts = Rollouts(world, count)
                    policy = RandomChains(rollouts.env.grammar)
                    rollouts.play(policy, [*map(Episode, range(count))])  # opens the sessions
                    start = time.perf_counter()
                    played = rollouts.play(policy, [*map(Episode, range(4 * count))])
                    took.append(sum(map(len, played)) / (time.perf_counter() - start))
                    for env in rollouts._first_envs(count):
                        env.close()
                print(f"rollouts of {num_sessions} episodes over one: {took[1] / took[0]:.2f} x")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sessions", type=int, default=ServeConfig.max_sessions)
    parser.add_argument("--steps", type=int, default=100, help="completions of each session")
    parser.add_argument("--episodes", type=int, default=10_000, help="played in both ways")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--slow", type=float, default=0.01, help="seconds of a slow world's step")
    arguments = parser.parse_args()
    measure_slow(arguments.slow, arguments.sessions, 100)
    os.sched_setaffinity(0, {arguments.core})
    measure_rate(arguments.sessions, arguments.steps)
    measure_equality(arguments.episodes)


if __name__ == "__main__":
    main()
