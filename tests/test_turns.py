"""Trackers that show tables get one of a round's turns; one that fails costs a line."""

import logging
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from lactchain.config.settings import RunConfig
from lactchain_extras.turns import COLUMNS, log_turns

ANSWER = {
    "state": '{"x":1}', "text": "You are here.", "completion": '["go", "go"]', "value": 0.5,
    "rewards": [0.0, 1.0], "advantage": None, "success": True, "return": 2.0,
}  # fmt: skip
ROW = ['{"x":1}', "You are here.", '["go", "go"]', 1.0, 0.5, None, True, 2.0]


@pytest.fixture
def sent(monkeypatch):
    """What trackers that stand in for wandb and trackio are handed."""
    sent = []
    run = SimpleNamespace(log=sent.append)
    wandb = {
        "run": None,
        "init": lambda **kwargs: sent.append(kwargs) or run,
        "Table": lambda columns, data: (columns, data),
    }
    trackio = {
        "init": lambda **kwargs: sent.append(kwargs),
        "Table": lambda dataframe: (list(dataframe.columns), dataframe.to_numpy(object).tolist()),
        "log": sent.append,
        "finish": lambda: sent.append("finished"),
    }
    for name, members in (("wandb", wandb), ("trackio", trackio)):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return sent


def test_wandb_and_trackio_get_a_table_of_turns_a_round(sent, tmp_path):
    log_turns(RunConfig(str(tmp_path / "mine"), report_to=["trackio", "wandb"]), 2, [ANSWER])
    table = {"turns/round_2": (list(COLUMNS), [ROW])}
    first, logged, finished, begun, also_logged = sent
    assert first["name"] == begun["name"] == "mine" and begun["dir"] == str(tmp_path / "mine")
    assert logged == also_logged == table and finished == "finished"


def test_turns_go_into_wandbs_run_under_way_and_to_no_tracker_without_tables(sent, tmp_path):
    own = []
    sys.modules["wandb"].run = SimpleNamespace(log=own.append)
    for trackers in (["wandb"], ["tensorboard"], []):
        log_turns(RunConfig(str(tmp_path), report_to=trackers), 0, [ANSWER])
    assert own == [{"turns/round_0": (list(COLUMNS), [ROW])}] and not sent


def test_a_tracker_that_fails_costs_a_warning(sent, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    sys.modules["trackio"].log = lambda _: 1 / 0
    log_turns(RunConfig(str(tmp_path), report_to=["trackio"]), 0, [ANSWER])
    assert "trackio failed (ZeroDivisionError" in caplog.text
