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
import yaml
from conftest import ROOT
from script_setups import CLASSES, build_weights
from serving_setups import pipeline

from lactchain.config.parsing import dump, parse
from lactchain_extras.stages.doctor import DoctorConfig

NODES = ["127.0.0.1", "127.0.0.2"]
CONFIG = "configs/run_pipeline/gridworld_mistral7b.yaml"
NOTE = """import json, os, sys
names = ("NODE", "CUDA_VISIBLE_DEVICES", "HF_HOME")
names += ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_API_KEY")
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
    "accelerate": NOTE
    + """
import subprocess, time
seconds = float(os.environ["TRAINS"])
if "--num_processes" in sys.argv:
    time.sleep(seconds)
elif seconds:
    sys.exit(subprocess.call([sys.executable, "-IS", os.path.dirname(sys.argv[0]) + "/script"]))
sys.exit(4)
""",
    "script": """import os, signal, sys, time
def stop(*_):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write('["script", "saved"]\\n')
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
with open(os.environ["NOTES"], "a") as notes:
    notes.write('["script", "began"]\\n')
time.sleep(30)
""",
    "scontrol": f"print('\\n'.join({NODES}))",
    "srun": """import os, sys
place = sys.argv.index("-w") + 1
os.environ["NODE"] = sys.argv[place]
os.execvp(sys.argv[place + 1], sys.argv[place + 1 :])
""",
    "ssh": """import os, sys
*options, node, command = sys.argv[1:]
sent = next(o for o in options if o.startswith("SendEnv=")).removeprefix("SendEnv=").split()
kept = {name: os.environ[name] for name in ("NOTES", "TRAINS", *sent) if name in os.environ}
words = "exec " + command.split(" && ", 1)[1]
assert "sk-" not in words
os.execve("/bin/bash", ["bash", "-c", words], kept | {"NODE": node})
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
        plain = {n: text for n, text in os.environ.items() if not n.startswith(("SLURM", "CUDA"))}
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        told = {"PATH": path, "NOTES": str(notes), "PORT": str(port), "PAUSE": ".1", "TRAINS": "0"}
        told |= {"MODEL": "mistralai/Mistral-7B-Instruct-v0.3"}
        command = ["bash", ROOT / "recipes/served.sh", *arguments]
        where = {"cwd": tmp_path, "env": plain | told | variables}
        with start.said.open("w") as said:
            return subprocess.Popen(command, **where, stderr=said)

    start.notes, start.port, start.said = notes, port, tmp_path / "said"
    return start


def free_ports(count):
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
def test_servers_and_training_share_gpus(recipe, generating, training, where, gpus, monkeypatch):
    """The code of the recipe is that of training: here 4."""
    script = recipe(str(generating), str(training), "--config", CONFIG, **where)
    assert script.wait(60) == 4
    *servers, (checked, doctor), (launched, trainer) = noted(recipe)
    ports = [recipe.port + number for number in range(generating)]
    apart = "NODES" in where or where.get("SLURM_JOB_NUM_NODES") == "2"
    shares = sorted(note["CUDA_VISIBLE_DEVICES"] for _, note in servers)
    assert shares == [str(number) for number in range(generating)]
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
    assert config.actor.served.in_flight * training >= 128 * generating
    assert not any(listens(NODES[0], port) for port in ports)


def test_a_signal_ends_servers_and_training(recipe):
    """The launcher of one process hands no signal on to it."""
    script = recipe("2", "1", TRAINS="600")
    while not (recipe.notes.exists() and "began" in recipe.notes.read_text()):
        time.sleep(0.1)
    script.send_signal(signal.SIGTERM)
    assert script.wait(25) == 143 and noted(recipe)[-1] == ["script", "saved"]
    assert not any(listens(NODES[0], recipe.port + number) for number in range(2))


def test_a_server_that_ends_ends_the_recipe(recipe):
    script = recipe("2", "1", BROKEN=str(recipe.port))
    assert script.wait(30) == 8
    assert f"a server has ended, see server_{recipe.port}.log" in recipe.said.read_text()
    assert {name for name, _ in noted(recipe)} == {"vllm"}
    assert not listens(NODES[0], recipe.port + 1)


def test_a_server_of_somebody_else_is_not_taken_for_ours(recipe):
    with socket.create_server((NODES[0], recipe.port + 1)):
        script = recipe("2", "1")
        assert script.wait(30) == 2
    assert f"port {recipe.port + 1} of {NODES[0]}: expected a free one" in recipe.said.read_text()
    assert not recipe.notes.exists()


REFUSED = {
    "no arguments": ((), {}, "expected GENERATING TRAINING ARGUMENTS"),
    "no model": (("1", "1"), {"MODEL": ""}, "MODEL: expected the model to serve"),
    "two models": (("1", "1", "--actor.model=other"), {}, "expected neither --actor.model nor"),
    "three nodes": (("1", "1"), {"NODES": "a b c"}, "expected one node or two, got a b c"),
    "too few GPUs": (("1", "2"), {"CUDA_VISIBLE_DEVICES": "3,5"}, "expected 3 GPUs, got 3 5"),
}


@pytest.mark.parametrize(("arguments", "variables", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_started_is_one_line(recipe, arguments, variables, words):
    script = recipe(*arguments, **variables)
    assert script.wait(30) == 2 and not recipe.notes.exists()
    (line,) = recipe.said.read_text().splitlines()
    assert line.startswith("recipes/served.sh: ") and words in line


def test_gpus_are_those_that_were_given_and_so_are_requests_in_flight(recipe):
    words = ("1", "2", "--actor.served.in_flight", "7")
    assert recipe(*words, CUDA_VISIBLE_DEVICES="7,GPU-5,3").wait(30) == 4
    (_, server), _, (_, trainer) = noted(recipe)
    assert server["CUDA_VISIBLE_DEVICES"] == "7"
    assert trainer["CUDA_VISIBLE_DEVICES"] == "GPU-5,3"
    assert trainer["args"].count("--actor.served.in_flight") == 1


@pytest.mark.parametrize("nodes", [NODES[0], " ".join(NODES)])
def test_the_key_guards_servers_and_is_on_no_command_line(recipe, nodes):
    key = {"LACTCHAIN_SERVER_KEY": "sk-1234", "HF_HOME": "/some where", "NODES": nodes}
    assert recipe("1", "1", **key).wait(30) == 4
    for name, note in noted(recipe):
        assert not any("sk-" in word for word in note["args"])
        assert note["HF_HOME"] == "/some where"
        assert name != "vllm" or note["VLLM_API_KEY"] == "sk-1234"


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


def test_the_command_of_a_skypilot_job_is_one_of_this_project():
    task = yaml.safe_load((ROOT / "recipes/sky.yaml").read_text())
    script = task["run"].replace("~/sky_templates/ray/start_cluster", "").replace("exec ", "echo ")
    script = script.replace("source .venv/bin/activate", "")
    rank = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    variables = task["envs"] | rank | {"SKYPILOT_NUM_NODES": str(task["num_nodes"])}
    shell = ["bash", "-c", f"{script}\necho $RAY_ADDRESS"]
    said = subprocess.run(shell, capture_output=True, text=True, env=variables, check=True)
    command, address = said.stdout.splitlines()
    assert parse(CLASSES["run_pipeline"], command.split()[2:]).run.run_dir == "/bucket/first"
    assert command.endswith(" --workers ray:2") and address == "10.0.0.1:6379"
    assert (ROOT / task["envs"]["WEIGHTS"]).is_file()
