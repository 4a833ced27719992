"""Kills who works with a server, and the server, at random; the end must be that of no kill.

python benchmarks/serving_kills.py --kills 100
python benchmarks/serving_kills.py --first 40 --kills 60

Generation is by an engine of the tests in a process of its own, with a tiny actor on a 2x2 grid. In
turn SIGKILL hits a trainer, a pipeline of two rounds of an adapter; a client, which only collects
episodes; and the server of a pipeline. It comes at a random time of what the run took before, and
the same command is given again. At the end pairs, episodes and weights must equal those of a local
run, no file may be there twice or be missing, and no name of an adapter may have stood for two
contents. No kill excuses a run that crashes: that ends by itself, and neither well nor for want of
its server.
"""

import json
import os
import random
import signal
import socket
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measuring import ROOT, command_line

sys.path.insert(0, str(ROOT / "tests"))
import training_setups
from engine_stand_in import Engine, serving
from script_setups import COLLECT, build_weights, config_of, run_here, start
from serving_setups import GRAMMAR, adapter_weights, pipeline
from test_rollouts import heard

from lactchain.config.settings import ServedConfig
from lactchain.data.preferences import read_pairs
from lactchain.data.sources import read_trajectories
from lactchain.errors import ServerError
from lactchain.types import Trajectory
from lactchain_extras.serving.servers import adapter_name

VICTIMS = ("trainer", "client", "server")
SCRIPTS = {"trainer": "run_pipeline", "client": "collect_rollouts", "server": "run_pipeline"}
ROUNDS = ("round_1/simpo", "round_2/simpo")
KILLED = -signal.SIGKILL
EXPECTED = {0, ServerError.exit_code, KILLED}
"""Exit codes of a run that is killed, and whose server is."""


class Noting(Engine):
    """Notes in a file what each name has stood for."""

    def _load_adapter(self, asked: dict) -> tuple:
        with open(os.environ["NOTES"], "a") as notes:
            notes.write(f"{asked['lora_name']} {adapter_name(asked['lora_path'])}\n")
        return super()._load_adapter(asked)


class Bench:
    """What runs are compared with, and how long they take.

    Args:
        folder: of all runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weights = build_weights(folder / "weights")
        self.seconds = dict.fromkeys(VICTIMS, 0.0)
        for victim in ("trainer", "client"):
            began = time.monotonic()
            run_here(SCRIPTS[victim], self.config(victim, folder / victim, None))
            self.seconds[victim] = time.monotonic() - began
        self.seconds["server"] = self.seconds["trainer"]

    def config(self, victim: str, run_dir: Path, url: str | None) -> Any:
        """The configuration of a run, behind a server or with a local actor."""
        if SCRIPTS[victim] == "run_pipeline":
            config = pipeline(None, self.weights, run_dir)
        else:
            few = replace(COLLECT, num_episodes=192)
            config = config_of("collect_rollouts", self.weights, run_dir, collect=few)
        if url is None:
            return config
        served = ServedConfig([url], timeout_seconds=30.0)
        return replace(config, actor=replace(config.actor, served=served))

    def killed_run(self, number: int) -> dict[str, Any]:
        """A run in which one is killed, if it is not over before, and whether it ends as ever."""
        victim, chance, port = VICTIMS[number % len(VICTIMS)], random.Random(number), free_port()
        run_dir, notes = self.folder / f"run_{number}", self.folder / f"notes_{number}"
        notes.touch()
        config = self.config(victim, run_dir, f"http://127.0.0.1:{port}")
        begin, began, codes = partial(start, SCRIPTS[victim], config), time.monotonic(), set()
        engine, client = start_engine(self.weights, port, notes), begin()
        client.join(chance.uniform(0, self.seconds[victim]))
        is_hit = client.exitcode is None
        if is_hit:
            kill(engine if victim == "server" else client)
        if is_hit and victim == "server":
            time.sleep(chance.uniform(0, 2))
            engine = start_engine(self.weights, port, notes)
            client.join()
        while client.exitcode in (KILLED, ServerError.exit_code):  # it was away for too long
            codes.add(client.exitcode)
            client = begin()
            client.join()
        kill(engine)
        self.seconds[victim] = time.monotonic() - began
        named = [line.split() for line in notes.read_text().splitlines()]
        return {
            "number": number,
            "run": SCRIPTS[victim],
            "killed": victim if is_hit else None,
            "seconds": round(self.seconds[victim], 1),
            "exit_code": client.exitcode,
            "crashes": sorted({*codes, client.exitcode} - EXPECTED),
            "names_are_of_their_content": all(n == c for n, c in named) if named else None,
            "equal": client.exitcode == 0 and self.ends_alike(victim, run_dir),
        }

    def ends_alike(self, victim: str, run_dir: Path) -> bool:
        """Whether a run has the files of the local one, with the same in them."""
        if victim == "client":
            here, there = (run / "trajectories" for run in (self.folder / victim, run_dir))
            return names(here) == names(there) and episodes(here) == episodes(there)
        return all(
            names(here / "pairs") == names(there / "pairs")
            and read_pairs(here / "pairs") == read_pairs(there / "pairs")
            and adapter_weights(here / "actor") == adapter_weights(there / "actor")
            for here, there in ((self.folder / "trainer" / r, run_dir / r) for r in ROUNDS)
        )


def main() -> None:
    arguments = command_line(__doc__)
    arguments.add_argument("--kills", type=int, default=99)
    arguments.add_argument("--first", type=int, default=0, help="number of the first run")
    given = arguments.parse_args()
    with TemporaryDirectory() as place:
        bench = Bench(Path(place))
        left, well, numbers = given.kills, True, count(given.first)
        while left > 0:
            found = bench.killed_run(next(numbers))
            left -= found["killed"] is not None
            well = is_well(found) and well
            print(json.dumps(found), flush=True)
    sys.exit(not well)


def is_well(found: dict[str, Any]) -> bool:
    """Whether a killed run is as one of no kill; only who trains an adapter gives any a name."""
    named = True if found["run"] == "run_pipeline" else None
    return (found["names_are_of_their_content"], found["crashes"]) == (named, []) and found["equal"]


def names(folder: Path) -> list[str]:
    """The files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def episodes(folder: Path) -> list[Trajectory]:
    """Episodes without the name of who played, and the last bits of probabilities."""
    return [replace(played, policy="") for played in heard(read_trajectories(folder))]


def start_engine(weights: Path, port: int, notes: Path) -> BaseProcess:
    """The engine, in a process of its own."""
    process = training_setups._preloaded().Process(target=run_engine, args=(weights, port, notes))
    process.start()
    return process


def run_engine(weights: Path, port: int, notes: Path) -> None:
    os.environ["NOTES"] = str(notes)
    with serving(Noting(weights / "actor", GRAMMAR), port):
        signal.pause()


def kill(process: BaseProcess) -> None:
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
