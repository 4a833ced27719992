"""vLLM and SGLang by the words of their sources: what they are asked, and what they answer."""

import json
from dataclasses import replace

import pytest
from engine_stand_in import serving
from engine_words import SGLANG, VLLM, VLLM_DEFAULTS, amiss
from script_setups import GRID
from serving_setups import GRAMMAR, STATE, asked_of, same
from sglang_stand_in import SGLang

from lactchain.config.settings import PlayerConfig
from lactchain.data.episodes import sampled_episodes
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import make_language_env
from lactchain.errors import ServerError
from lactchain.models.actor import LanguageActor
from lactchain_extras.serving.dialects import DIALECTS, Request
from lactchain_extras.serving.policy import ServedActor
from lactchain_extras.serving.servers import sync
from lactchain_extras.stages.doctor import examine

ROW = Request("base", "lactchain-1", "hi", [1, 5, 6], 2**63 - 1, 0.5, 12, 2, "a|b")


@pytest.fixture(scope="module")
def sglang(weights):
    with serving(SGLang(weights / "actor", GRAMMAR)) as engine:
        yield engine


def asked_sglang(engine, **changes):
    config = asked_of(engine, **changes)
    return replace(config, served=replace(config.served, dialect="sglang"))


@pytest.mark.parametrize("row", [ROW, replace(ROW, adapter=None, pattern=None)])
def test_each_field_of_a_request_is_one_that_the_engine_has(row):
    vllm, sglang = (
        json.loads(json.dumps(DIALECTS[name].write(row))) for name in ("vllm", "sglang")
    )
    assert amiss(vllm, VLLM) == amiss(sglang, SGLANG) == ""
    defaults = VLLM_DEFAULTS & vllm.keys()
    assert defaults == VLLM_DEFAULTS and sglang["sampling_params"].keys() >= VLLM_DEFAULTS
    assert vllm["ignore_eos"] and vllm["stop_token_ids"] == [2]
    assert "ignore_eos" not in sglang["sampling_params"]  # there it takes away `stop_token_ids` too
    assert amiss(vllm | {"guided_regex": "a"}, VLLM) == "unknown field guided_regex"
    assert amiss(sglang | {"sampling_params": {"seed": 1}}, SGLANG).startswith("sampling_params")


@pytest.mark.parametrize("decoding", ["free", "constrained"])
def test_episodes_behind_sglang_are_those_here_with_an_adapter_too(sglang, adapters, decoding):
    config = asked_sglang(sglang, decoding=decoding, adapter=str(adapters[0]))
    episodes = sampled_episodes(make_language_env(GRID), 24, seed=1)
    here = LanguageActor.from_config(replace(config, served=None), GRAMMAR)
    sglang.faults = 0.3
    played = Rollouts(GRID, num_envs=16).play(ServedActor.from_config(config, GRAMMAR), episodes)
    sglang.faults = 0.0
    same(played, Rollouts(GRID, num_envs=16).play(here, episodes))


def test_an_adapter_that_sglang_has_lost_is_given_again_and_unloaded_in_the_end(sglang, adapters):
    config = asked_sglang(sglang, adapter=str(adapters[1]))
    actor = ServedActor.from_config(config, GRAMMAR)
    sglang.adapters.clear(), sglang.log.clear()  # as after a restart
    actor.act([STATE] * 4, range(4))
    assert sglang.log == [f"load {actor.adapter}"]
    sync(replace(config, adapter=None), [adapters[1]])
    assert sglang.adapters == {} and sglang.log[-1] == f"unload {actor.adapter}"


def test_an_sglang_without_adapters_says_so_in_its_own_words(sglang, adapters, monkeypatch):
    monkeypatch.setattr(sglang, "max_rank", 0)
    with pytest.raises(ServerError, match="LoRA is not enabled. Please set `--enable-lora`"):
        ServedActor.from_config(asked_sglang(sglang, adapter=str(adapters[1])), GRAMMAR)
    found = examined(sglang)
    assert [finding.what for finding in found if finding.ok is False] == ["adapters"]


def test_the_doctor_finds_all_well_with_an_sglang(sglang):
    found = {finding.what: finding for finding in examined(sglang)}
    assert "version 0.5.stand-in" in found["server"].found
    assert [what for what, finding in found.items() if not finding.ok] == ["adapters"]
    assert found["adapters"].found.startswith("not tried")


def examined(engine):
    """The findings of the doctor, whether it ends well or not."""
    config = PlayerConfig(str(engine.model), served=asked_sglang(engine).served)
    return list(examine(config, GRAMMAR, STATE))


def test_a_stop_that_sglang_makes_up_after_a_nan_is_no_completion(sglang, monkeypatch):
    """`schedule_batch.py` puts a stop token there, so that all else looks well."""
    actor = ServedActor.from_config(asked_sglang(sglang), GRAMMAR)
    told = SGLang._told

    def made_up(engine, choice, with_prompt):
        body = told(engine, choice, with_prompt)
        body["meta_info"]["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
        return body

    monkeypatch.setattr(SGLang, "_told", made_up)
    with pytest.raises(ServerError, match="stopped by 'NaN happened', which is no token"):
        actor.act([STATE], [3])


def test_an_older_sglang_that_does_not_show_the_prompt_is_refused(sglang, monkeypatch):
    actor = ServedActor.from_config(asked_sglang(sglang), GRAMMAR)
    told = SGLang._told
    monkeypatch.setattr(SGLang, "_told", lambda engine, choice, _: told(engine, choice, False))
    with pytest.raises(ServerError, match="expected a completion .*'prompt_token_ids'"):
        actor.act([STATE], [3])
