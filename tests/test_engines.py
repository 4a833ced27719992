"""vLLM and SGLang by the words of their sources, and the doctor of a server."""

import json
import re
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from engine_stand_in import Answer, Engine, Script, answer, serving
from engine_words import SGLANG, SGLANG_LOAD, VLLM, VLLM_DEFAULTS, VLLM_TOKENIZE, VLLM_UNLOAD, amiss
from script_setups import GRID
from serving_setups import GRAMMAR, STATE, asked_of, same

from lactchain import ChainGrammar, LanguageActor, PlayerConfig, Rollouts, make_language_env
from lactchain.data.episodes import sampled_episodes
from lactchain.errors import ServerError
from lactchain_extras.serving.dialects import DIALECTS, Request
from lactchain_extras.serving.policy import ServedActor, pattern_of
from lactchain_extras.serving.servers import sync
from lactchain_extras.stages.doctor import DoctorConfig, examine, main

ROW = Request("base", "lactchain-1", "hi", [1, 5, 6], 2**63 - 1, 0.5, 12, 2, "a|b")
SGLANG_PATHS = {"/generate": SGLANG, "/load_lora_adapter": SGLANG_LOAD}
SGLANG_PATHS |= {"/unload_lora_adapter": VLLM_UNLOAD, "/tokenize": VLLM_TOKENIZE}
ABOUT_ADAPTERS = {"/load_lora_adapter": "already loaded", "/unload_lora_adapter": "does not exist"}


def unheard(words: str) -> Answer:
    """What `/generate` refuses."""
    return answer(400, {"error": {"message": words}})


class SGLang(Engine):
    """As `Engine`; its base goes by the name of its folder."""

    async def _route(self, path: str, body: bytes) -> Answer:
        asked, (path, _, _) = json.loads(body) if body else {}, path.partition("?")
        if wrong := path in SGLANG_PATHS and amiss(asked, SGLANG_PATHS[path]):
            return unheard(wrong)
        if path == "/generate":
            return await self._generate(asked)
        if path in ABOUT_ADAPTERS:
            return self._order(path, asked)
        if path in ("/server_info", "/get_server_info"):
            return answer(200, {"version": "0.5.stand-in", "internal_states": [{}]})
        known = {"/v1/models": self._models, "/tokenize": self._tokenize}
        return known[path](asked) if path in known else answer(404, {"detail": "Not Found"})

    async def _generate(self, asked: dict[str, Any]) -> Answer:
        adapter, sampling = asked.get("lora_path"), asked["sampling_params"]
        if adapter is not None and adapter not in self.adapters:
            loaded = f"All loaded adapters: {self.adapters.keys()}."
            return unheard(f"Got LoRA adapter that has never been loaded: {adapter}\n{loaded}")
        row = {
            "model": adapter or "base", "prompt": asked["input_ids"],
            "seed": sampling["sampling_seed"], "temperature": sampling["temperature"],
            "max_tokens": sampling["max_new_tokens"],
            "structured_outputs": {"regex": sampling.get("regex")},
        }  # fmt: skip
        status, more, content = await self._completion(row)
        if status != 200:
            return status, more, content
        (choice,) = json.loads(content)["choices"]
        return answer(200, self._told(choice, asked.get("return_prompt_token_ids", False)))

    def _told(self, choice: dict[str, Any], with_prompt: bool) -> dict[str, Any]:
        ended, ids = choice["finish_reason"], choice["token_ids"]
        reason = {"type": ended} | ({"matched": ids[-1]} if ended == "stop" else {"length": 8})
        pairs = zip(choice["logprobs"]["token_logprobs"], ids, strict=True)
        logprobs = [[value, token, None] for value, token in pairs]
        about = {"id": "a", "finish_reason": reason, "output_token_logprobs": logprobs}
        told = {"text": choice["text"], "output_ids": ids, "meta_info": about}
        return told | ({"prompt_token_ids": choice["prompt_token_ids"]} if with_prompt else {})

    def _models(self, _: dict[str, Any]) -> Answer:
        told = super()._models(_)[2].decode()
        return answer(200, told.replace('"base"', json.dumps(str(self.model))))

    def _order(self, path: str, asked: dict[str, Any]) -> Answer:
        """Loads or unloads an adapter."""
        name, loads = asked["lora_name"], path.startswith("/load")
        wrong = "" if self.max_rank else "LoRA is not enabled. Please set `--enable-lora`"
        if not wrong and (name in self.adapters) == loads:
            wrong = f"LoRA {name} {ABOUT_ADAPTERS[path]}"
        if not wrong:
            order = super()._load_adapter if loads else super()._unload_adapter
            status, _, content = order(asked)
            wrong = "" if status == 200 else json.loads(content)["error"]["message"]
        told = {"success": not wrong, "error_message": wrong, "loaded_adapters": None}
        return answer(400 if wrong else 200, told)


@pytest.fixture(scope="module")
def sglang(weights):
    with serving(SGLang(weights / "actor", GRAMMAR)) as engine:
        yield engine


def asked_sglang(engine, **changes):
    config = asked_of(engine, **changes)
    return replace(config, served=replace(config.served, dialect="sglang"))


@pytest.mark.parametrize("row", [ROW, replace(ROW, adapter=None, pattern=None)])
def test_each_field_of_a_request_is_one_that_the_engine_has(row):
    dialects = DIALECTS["vllm"], DIALECTS["sglang"]
    vllm, sglang = (json.loads(json.dumps(dialect.write(row))) for dialect in dialects)
    assert amiss(vllm, VLLM) == amiss(sglang, SGLANG) == ""
    defaults = VLLM_DEFAULTS & vllm.keys()
    assert defaults == VLLM_DEFAULTS and sglang["sampling_params"].keys() >= VLLM_DEFAULTS
    assert vllm["ignore_eos"] and vllm["stop_token_ids"] == [2]
    assert "ignore_eos" not in sglang["sampling_params"]  # there it takes away `stop_token_ids` too
    assert amiss(vllm | {"guided_regex": "a"}, VLLM) == "unknown field guided_regex"
    assert amiss(sglang | {"sampling_params": {"seed": 1}}, SGLANG).startswith("sampling_params")


def test_texts_alone_are_asked_for_from_the_model_s_own_distribution():
    """By every word for it that OpenAI's protocol has, and no other: some servers refuse those."""
    request = DIALECTS["text"].write(ROW)
    assert request == {
        "model": ROW.model, "prompt": ROW.prompt, "max_tokens": ROW.max_tokens, "seed": ROW.seed,
        "temperature": ROW.temperature, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0,
    }  # fmt: skip


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
    with pytest.raises(ServerError, match="LoRA is not enabled. Please set"):
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


MADE_UP = {"finish_reason": {"type": "stop", "matched": "NaN happened"}}
STRANGE = {
    # `schedule_batch.py` puts a stop token there after a nan, so that all else looks well.
    "by 'NaN happened', which is no token": lambda body: body["meta_info"].update(MADE_UP),
    # An older one does not show the prompt.
    "completion .*'prompt_token_ids'": lambda body: body.pop("prompt_token_ids", None),
}


@pytest.mark.parametrize("words", STRANGE)
def test_a_stop_that_is_made_up_and_an_older_sglang_are_refused(sglang, monkeypatch, words):
    actor = ServedActor.from_config(asked_sglang(sglang), GRAMMAR)
    told = SGLang._told

    def strange(engine, choice, with_prompt):
        body = told(engine, choice, with_prompt)
        STRANGE[words](body)
        return body

    monkeypatch.setattr(SGLang, "_told", strange)
    with pytest.raises(ServerError, match=words):
        actor.act([STATE], [3])


def visited(engine, model, adapter=None):
    """The marks of a visit, by what was looked at, and whether it ended well."""
    actor = PlayerConfig(str(model), adapter=adapter)
    config = DoctorConfig(engine.url, environment=GRID, actor=actor)
    return {finding.what: finding for finding in main(config)}


def test_all_is_well_with_an_engine_that_computes_as_it_is_asked(weights, adapters, capsys):
    with serving(Engine(weights / "actor", GRAMMAR)) as engine:
        found = visited(engine, weights / "actor", str(adapters[0]))
        assert {finding.ok for finding in found.values()} == {True} and len(found) == 8
        (name,) = {line.split()[1] for line in engine.log}
        assert engine.log == [f"load {name}", f"unload {name}"]
    told = capsys.readouterr().out
    assert told.count("well") == 8 and f"{name} was loaded, and answered" in told


class Raw(Engine):
    """Tells other log-probabilities than those of the distribution that it draws from."""

    def _choice(self, actor, prompt, completion):
        raw = {"token_logprobs": [-1.0] * len(completion.token_ids)}
        return super()._choice(actor, prompt, completion) | {"logprobs": raw}


class Seedless(Engine):
    """Draws anew for every request."""

    draws = count()

    def _complete(self, actor, group):
        for asked, _ in group:
            asked["seed"] = next(self.draws)
        return super()._complete(actor, group)


class OneIdOff(Engine):
    """Its tokenizer says another number for one of the tokens."""

    def _tokenize(self, asked):
        told = json.loads(super()._tokenize(asked)[2])["tokens"]
        tokenizer = self._actor(None, None, 1.0, 8).tokenizer
        (quote,) = tokenizer('"', add_special_tokens=False)["input_ids"]
        return answer(200, {"tokens": [token + (token == quote) for token in told]})


class Sure(Engine):
    """A model that has learned what to say: no temperature that is asked of it makes it doubt."""

    async def _route(self, path, body):
        if path == "/v1/completions":
            asked = json.loads(body)
            body = json.dumps(asked | {"temperature": asked["temperature"] * 1e-6})
        return await super()._route(path, body)


def test_a_model_that_is_sure_of_its_words_is_not_amiss(weights):
    with serving(Sure(weights / "actor", GRAMMAR)) as engine:
        found = visited(engine, weights / "actor")
    unknown = {finding.what for finding in found.values() if finding.ok is None}
    assert unknown == {"seeds", "log-probabilities", "adapters"}
    assert found["adapters"].found.startswith("not tried")


class Deaf(Engine):
    """Loads an adapter, and answers nothing by it."""

    def _complete(self, actor, group):
        if group[0][0]["model"] in self.adapters:
            raise ValueError("out of memory")
        return super()._complete(actor, group)


AMISS = {
    "log-probabilities": (Raw, {}, "AMISS"), "seeds": (Seedless, {}, "AMISS"),
    "tokenizer": (OneIdOff, {}, "AMISS"), "model": (Engine, {}, "AMISS"),
    "adapters": (Engine, {"max_rank": 0}, "AMISS"),
    "adapters of no answer": (Deaf, {}, "out of memory"),
}  # fmt: skip


@pytest.mark.parametrize("case", AMISS)
def test_what_is_amiss_is_named_and_nothing_stays_loaded(weights, adapters, capsys, case):
    kind, changes, words = AMISS[case]
    what = case.partition(" ")[0]
    model = weights / ("encoder" if what == "model" else "actor")
    with (
        serving(kind(weights / "actor", GRAMMAR, **changes)) as engine,
        pytest.raises(ServerError, match=r"expected all of \d+ checks to pass") as error,
    ):
        visited(engine, model, str(adapters[0]) if kind is Deaf else None)
    assert [line.split()[0] for line in engine.log] == ["load", "unload"] * (kind is Deaf)
    told = capsys.readouterr().out
    (line,) = (line for line in told.splitlines() if f"  {what} " in line)
    assert "AMISS" in line and words in told and what in str(error.value)
    if what != "model":  # which everything else is asked of
        assert f"1 did not ({what})" in str(error.value)


def test_of_a_server_that_knows_texts_alone_less_is_asked(weights, capsys):
    """One that hears no seed, as `transformers serve` does not."""
    texts = ({"text": f"answer {number}", "finish_reason": "stop"} for number in range(40))
    with serving(Script([answer(200, {"choices": [text]}) for text in texts])) as server:
        config = DoctorConfig(server.url, "text", GRID, PlayerConfig(str(weights / "actor")))
        with pytest.raises(ServerError, match=r"all of 2 checks to pass, 1 did not \(seeds\)"):
            main(config)
    assert "'answer 0', text alone" in capsys.readouterr().out


def test_the_pattern_of_a_grammar_is_its_completions():
    grammar = ChainGrammar(("go", "a.b", "(x|y)", "[z]"), max_chain_length=2)
    pattern = pattern_of(grammar)
    assert grammar.render([0, 1]) == '["go", "a.b"]'
    said = list(grammar.completions())
    assert len(said) == 4 + 16 and all(re.fullmatch(pattern, text) for text in said)
    assert re.fullmatch(pattern, ' ["go"]')  # as sentencepiece begins
    for text in ('["gone"]', '["aXb"]', '["x"]', '["go", "go", "go"]', "[]", '["go"', '  ["go"]'):
        assert not re.fullmatch(pattern, text)
