"""The examples of docs/ecosystems.md run as they stand, and are short."""

import sys
import tomllib
import types
from pathlib import Path

import pytest
from openenv_servers import running_world
from pages import BY_PATH
from script_setups import SHAPE
from trl_setups import cloned_qwen

from lactchain import EnvironmentConfig, make_language_env
from lactchain.data.base_models import prepare_tiny_actor
from lactchain_extras.ecosystems.sessions import Session
from lactchain_extras.ecosystems.tasks import splits_of

PAGE = BY_PATH["docs/ecosystems.md"]
URL, QWEN = "127.0.0.1:8000", "Qwen/Qwen3-0.6B"


def test_the_tasks_for_verifiers_are_those_of_the_server_on_the_page():
    (written,) = (tomllib.loads(code) for code in PAGE.blocks("toml"))
    taskset, env = written["env"]["taskset"], make_language_env(EnvironmentConfig())
    assert URL in taskset["base_url"] and not written["push"]
    session = Session(env, splits_of(env))
    for number, arguments in enumerate(taskset["resets"]):
        told = session.reset(arguments)["observation"]["text"]
        assert told == env.reset(options={"state": env.start_states()[number]})[0]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_the_examples_run_with_tiny_models(tmp_path, monkeypatch, capsys):
    module = types.ModuleType("a_page")
    monkeypatch.setitem(sys.modules, "a_page", module)
    monkeypatch.chdir(tmp_path)
    prepare_tiny_actor("weights/tiny-actor", SHAPE, EnvironmentConfig())
    for part in cloned_qwen(num_steps=0):
        part.save_pretrained("tiny-qwen")
    stand_ins = Path(__file__).parent / "stand_ins"
    with running_world(EnvironmentConfig()) as url:
        put = {URL: url.partition("//")[2], QWEN: "tiny-qwen", "GuessTheNumber-v0": "Guess-v0"}
        # Untrained models talk to the last token; and here is no GPU.
        put |= {"256": "4", '"max_steps": 2': '"max_steps": 2, "use_cpu": True, "bf16": False'}
        for code in PAGE.blocks("python"):
            if "textarena" in code:
                monkeypatch.syspath_prepend(str(stand_ins))
                monkeypatch.delitem(sys.modules, "textarena", raising=False)
            for written, meant in put.items():
                code = code.replace(written, meant)
            exec(compile(code, PAGE.path, "exec"), vars(module))
    sys.modules.pop("textarena", None)
    said = capsys.readouterr().out
    assert "'truncated': False" in said and "openenv:http://" in said
    assert module.trainer.state.global_step == 2
