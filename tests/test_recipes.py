"""The recipes of servers beside training: which GPU does what on which node, and that all end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from script_setups import CLASSES, build_weights
from serving_setups import pipeline

from lactchain.config import dump, parse
from lactchain.stages.doctor import DoctorConfig

ROOT = Path(__file__).parent.parent
NODES = ["127.0.0.1", "127.0.0.2"]
CONFIG = "configs/run_pipeline/gridworld_mistral7b.yaml"
NOTE = """import json, os, sys
names = ("NODE", "CUDA_VISIBLE_DEVICES", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
note = {"args": sys.argv[1:]} | {name: os.environ.get(name) for name in names}
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps([os.path.basename(sys.argv[0]), note]) + "\\n")
"""
PROGRAMS = {
    "vllm": NOTE
    + """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
if str(port) == os.environ.get("BROKEN"):
    sys.exit("no memory")
HTTPServer((os.environ.get("NODE", "127.0.0.1"), port), Healthy).serve_forever()
""",
    "lactchain": NOTE,
    "accelerate": NOTE + 'import time; time.sleep(float(os.environ["TRAINS"])); sys.exit(4)',
    "scontrol": f"print('\\n'.join({NODES}))",
    "srun": """import os, sys
place = sys.argv.index("-w") + 1
os.environ["NODE"] = sys.argv[place]
os.execvp(sys.argv[place + 1], sys.argv[place + 1 :])
""",
    "ssh": """import os, sys
os.environ["NODE"] = sys.argv[2]
os.execvp("bash", ["bash", "-c", "exec " + sys.argv[3].split(" && ", 1)[1]])
""",
}
"""What stands in for the programs of a cluster: they note how they were called."""


@pytest.fixture
def recipe(tmp_path):
    """Starts a recipe between stand-ins; with the file of their notes, and the first port."""
    for name, text in PROGRAMS.items():
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!{sys.executable} -IS\n{text}")
        file.chmod(0o755)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    notes, port = tmp_path / "notes", free_ports(2)

    def start(*arguments, **variables):
        plain = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")}
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        told = {"PATH": path, "NOTES": str(notes), "PORT": str(port), "PAUSE": ".1", "TRAINS": "0"}
        command = ["bash", ROOT / "recipes/served.sh", *arguments]
        return subprocess.Popen(command, cwd=tmp_path, env=plain | told | variables)

    start.notes, start.port = notes, port
    return start


def free_ports(count):
    """The first of so many ports that nobody listens at."""
    for port in range(20000 + os.getpid() % 10000, 60000, count):
        if not any(listens(node, port + more) for node in NODES for more in range(count)):
            return port
    raise OSError("no free ports")


def listens(node, port):
    with socket.socket() as probe:
        return probe.connect_ex((node, port)) == 0


def noted(recipe):
    return [json.loads(line) for line in recipe.notes.read_text().splitlines()]


SLURM = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[1-2]"}
CASES = {
    "side by side": (1, 1, {}, "1"),
    "side by side, Slurm": (1, 1, SLURM | {"SLURM_JOB_NUM_NODES": "1"}, "1"),
    "split": (2, 6, {}, "2,3,4,5,6,7"),
    "split, Slurm": (2, 6, SLURM | {"SLURM_JOB_NUM_NODES": "1"}, "2,3,4,5,6,7"),
    "two nodes": (2, 8, {"NODES": " ".join(NODES)}, "0,1,2,3,4,5,6,7"),
    "two nodes, Slurm": (2, 8, SLURM | {"SLURM_JOB_NUM_NODES": "2"}, "0,1,2,3,4,5,6,7"),
}


@pytest.mark.parametrize(("generating", "training", "where", "gpus"), CASES.values(), ids=CASES)
def test_servers_and_training_share_the_gpus_and_end_together(
    recipe, generating, training, where, gpus, monkeypatch
):
    """The code of the recipe is that of training: here 4."""
    script = recipe(str(generating), str(training), "--config", CONFIG, **where)
    assert script.wait(60) == 4
    *servers, (checked, doctor), (launched, trainer) = noted(recipe)
    ports = [recipe.port + number for number in range(generating)]
    apart = "NODES" in where or where.get("SLURM_JOB_NUM_NODES") == "2"
    assert sorted(note["CUDA_VISIBLE_DEVICES"] for _, note in servers) == [
        str(number) for number in range(generating)
    ]
    assert {name for name, _ in servers} == {"vllm"}
    assert {note["NODE"] for _, note in servers} == {NODES[0] if apart else None}
    assert {note["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] for _, note in servers} == {"1"}
    assert (checked, launched) == ("lactchain", "accelerate")
    assert trainer["NODE"] == (NODES[1] if apart else None)
    assert trainer["CUDA_VISIBLE_DEVICES"] == gpus

    monkeypatch.chdir(ROOT)
    place = trainer["args"].index("scripts/run_pipeline.py")
    launch, file, *options = trainer["args"][:place]
    assert (launch, file) == ("launch", "--config_file") and Path(options[0]).is_file()
    assert options[1:] == ([] if training == 1 else ["--num_processes", str(training)])
    config = parse(CLASSES["run_pipeline"], trainer["args"][place + 1 :])
    assert doctor["args"][0] == "doctor"
    asked = parse(DoctorConfig, doctor["args"][1:])
    assert asked.actor.model == config.actor.model == servers[0][1]["args"][1]
    assert asked.actor.served.urls == config.actor.served.urls
    assert [urlsplit(url).port for url in config.actor.served.urls] == ports
    assert not any(listens(NODES[0], port) for port in ports)


def test_a_signal_ends_servers_and_training(recipe):
    script = recipe("2", "1", TRAINS="600")
    while not (recipe.notes.exists() and "accelerate" in recipe.notes.read_text()):
        time.sleep(0.1)
    script.send_signal(signal.SIGTERM)
    assert script.wait(30) == 143
    assert not any(listens(NODES[0], recipe.port + number) for number in range(2))


def test_a_server_that_ends_ends_the_recipe(recipe):
    assert recipe("2", "1", BROKEN=str(recipe.port)).wait(30) == 8
    assert {name for name, _ in noted(recipe)} == {"vllm"}
    assert not listens(NODES[0], recipe.port + 1)


ENGINE = f"""import signal, sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]}
from engine_stand_in import Engine, serving
from serving_setups import GRAMMAR
from pathlib import Path
with serving(Engine(Path(sys.argv[2]), GRAMMAR), int(sys.argv[sys.argv.index("--port") + 1])):
    signal.pause()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipeline_runs_by_the_recipe_behind_an_engine(recipe, tmp_path):
    """accelerate's own launcher, the script and the engine of the tests; no doctor."""
    (tmp_path / "bin/accelerate").unlink()
    (tmp_path / "bin/vllm").write_text(f"#!{sys.executable}\n{ENGINE}")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    weights, few = build_weights(tmp_path / "weights"), tmp_path / "few.yaml"
    few.write_text(dump(replace(pipeline(None, weights, tmp_path / "run"), num_rounds=1)))
    told = {"MODEL": str(weights / "actor"), "LAUNCH": "configs/accelerate/cpu.yaml"}
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = recipe("1", "1", "--config", str(few), PATH=path, PYTHONPATH=str(ROOT), **told)
    assert script.wait(600) == 0
    assert len(json.loads((tmp_path / "run/environment.json").read_text())["servers"]) == 1
    assert json.loads((tmp_path / "run/summary.json").read_text())["num_rounds"] == 1
