"""The doctor of servers: well where all is well, and the one thing where one is amiss."""

import json
from itertools import count

import pytest
from engine_stand_in import Engine, Script, answer, serving
from script_setups import GRID
from serving_setups import GRAMMAR

from lactchain.config.settings import PlayerConfig
from lactchain.errors import ServerError
from lactchain_extras.stages.doctor import DoctorConfig, main


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
    "log-probabilities": (Raw, {}, "AMISS"),
    "seeds": (Seedless, {}, "AMISS"),
    "tokenizer": (OneIdOff, {}, "AMISS"),
    "adapters": (Engine, {"max_rank": 0}, "AMISS"),
    "adapters of no answer": (Deaf, {}, "out of memory"),
    "model": (Engine, {}, "AMISS"),
}


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
