"""Servers that are not what they should be: one line, no secret in it, and nothing is lost."""

import json
from dataclasses import replace
from functools import partial, partialmethod

import pytest
from engine_stand_in import Engine, answer, refusal, serving
from script_setups import COLLECT, config_of, run_here
from serving_setups import GRAMMAR, STATE, asked_of, asking, same

from lactchain.config.settings import GuidedActorConfig, RunConfig, ServedConfig
from lactchain.data.sources import read_trajectories
from lactchain.errors import LactChainError, ServerError
from lactchain_extras.serving.policy import ServedActor, drift
from lactchain_extras.serving.servers import identity
from lactchain_extras.serving.transport import KEY, Transport


class Changing(Engine):
    """Answers some completions as it should, then in another way."""

    lives = 20

    async def answer(self, path, headers, body):
        if path != "/v1/completions" or self.answered[path] < self.lives:
            return await super().answer(path, headers, body)
        return await self.changed(path, headers, body)

    async def changed(self, path, headers, body):
        return self.instead


def turned(**changes):
    """Each choice has these parts instead of its own."""
    return type("Turned", (Turned,), {"parts": changes})


class Turned(Changing):
    async def changed(self, path, headers, body):
        status, more, content = await super(Changing, self).answer(path, headers, body)
        told = json.loads(content)
        self.turn(told["choices"][0])
        return status, more, json.dumps(told).encode()

    def turn(self, choice):
        choice |= self.parts


def becoming(instead):
    return type("Becoming", (Changing,), {"instead": instead})


class Retokenised(Turned):
    """Its tokenizer has two of its tokens the other way round."""

    def turn(self, choice):
        tokenizer = self._actor(None, None, 1.0, 8).tokenizer
        chains = ['["move forward"]', '["turn left"]']
        pair = [ids[-1] for ids in tokenizer(chains, add_special_tokens=False)["input_ids"]]
        swap = dict(zip(pair, reversed(pair), strict=True))
        choice["text"] = tokenizer.decode([swap.get(i, i) for i in choice["token_ids"]][:-1])


ELSEWHERE = "http://127.0.0.1:1/elsewhere"
CHANGES = {
    "a page": (becoming(answer(200, "<html>Welcome!</html>")), "expected JSON, got '<html>"),
    "nothing": (becoming(None), "no answer for .* what is finished is kept"),
    "another place": (
        becoming(answer(302, "", Location=ELSEWHERE)), f"refused, with 302 {ELSEWHERE}"
    ),
    "another key": (becoming(refusal(401, "wrong key")), "refused, with 401 "),
    "another model": (becoming(refusal(404, "no model `base`")), "no model `base`"),
    "other flags": (becoming(refusal(400, "longest is 8")), "longest is 8"),
    "other tokens": (Retokenised, "the completion's text: expected"),
    "no tokens": (turned(token_ids=None), "expected a completion with its tokens"),
    "no numbers": (turned(logprobs={"token_logprobs": [float("nan")] * 9}), "log-probability nan"),
}  # fmt: skip


def test_a_run_whose_server_turns_into_each_other_thing_loses_nothing(weights, tmp_path):
    """The same command after each; what was finished stays as it is, byte for byte."""
    few = replace(COLLECT, num_episodes=64)
    stage = partial(config_of, "collect_rollouts", weights, tmp_path / "run", collect=few)
    run_here("collect_rollouts", replace(stage(), run=RunConfig(str(tmp_path / "here"))))

    def at(engine, seconds):
        served = ServedConfig([engine.url], in_flight=4, timeout_seconds=seconds)
        return stage(actor=replace(stage().actor, served=served))

    finished = {}
    for case, (kind, words) in CHANGES.items():
        with serving(kind(weights / "actor", GRAMMAR)) as engine:
            engine.lives = 20 if finished else 70
            with pytest.raises(LactChainError, match=words) as error:
                run_here("collect_rollouts", at(engine, 1.0 if case == "nothing" else 10.0))
            assert "\n" not in str(error.value)
        files = (tmp_path / "run/trajectories").glob("*.parquet")
        now = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
        assert now and finished.items() <= now.items()
        finished = now
    with serving(Engine(weights / "actor", GRAMMAR)) as engine:
        run_here("collect_rollouts", at(engine, 10.0))
    same(*(read_trajectories(tmp_path / name / "trajectories") for name in ("run", "here")))
    told = json.loads((tmp_path / "run/environment.json").read_text())
    assert len(told["servers"]) == len(CHANGES) + 1


class Talkative(Engine):
    """Repeats the key that it was shown, and more that no file should have."""

    async def _route(self, path, body):
        if path == "/version":
            return answer(200, {"version": f"1 for Bearer {self.key}\x1b[2J\nand {'.' * 300}"})
        return await super()._route(path, body)


def test_the_key_is_nowhere_in_a_run(weights, tmp_path, monkeypatch, capfd, caplog):
    key = "sk-CANARYcanaryCANARY"
    monkeypatch.setenv(KEY, key)
    stage = config_of("collect_rollouts", weights, tmp_path / "run", collect=COLLECT)
    flags = {key: {"dtype": key}}
    telling = Talkative(weights / "actor", GRAMMAR, key=key, faults=0.2, flags=flags)
    with serving(telling) as engine:
        served = ServedConfig([engine.url], timeout_seconds=10.0)
        run_here("collect_rollouts", replace(stage, actor=replace(stage.actor, served=served)))
        assert engine.answered["/v1/completions"] > 0
        monkeypatch.setenv(KEY, f"{key}x")
        other = GuidedActorConfig(stage.actor.model, served=replace(served, in_flight=3))
        with pytest.raises(ServerError, match="401 .*wrong key: Bearer <key>") as error:
            run_here("evaluate", config_of("evaluate", weights, tmp_path / "second", actor=other))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    said = "".join((*capfd.readouterr(), caplog.text, str(error.value)))
    assert key not in said and len(files) > 5
    assert not [path for path in files if key.encode() in path.read_bytes()]
    (told,) = json.loads((tmp_path / "run/environment.json").read_text())["servers"].values()
    assert told["version"].startswith("1 for Bearer <key> [2J and ...")
    assert len(told["version"]) == 200 and told["<key>.dtype"] == "<key>"


DEEP = '{"dtype": "half", "a":' * 960 + "1" + "}" * 960


@pytest.mark.parametrize("page", [answer(500, "<html>"), answer(502, ""), answer(200, DEEP)])
def test_a_page_that_servers_need_not_have_ends_no_run(weights, monkeypatch, page):
    monkeypatch.setattr("lactchain_extras.serving.servers.PAGE_SECONDS", 0.1)

    class Odd(Engine):
        async def answer(self, path, headers, body):
            if "info" in path:
                return page
            return await super().answer(path, headers, body)

    with serving(Odd(weights / "actor", GRAMMAR)) as engine, asking(engine) as transport:
        told = identity(transport, engine.url)
    assert told["version"] == "0.stand-in" and told["base.max_model_len"] == "512"


class Full(Engine):
    """Has room for one adapter."""

    def _load_adapter(self, asked):
        if self.adapters and asked["lora_name"] not in self.adapters:
            return refusal(500, "No free lora slots")
        return super()._load_adapter(asked)


def test_a_slot_that_is_full_is_one_line_and_what_was_loaded_stays(weights, adapters, monkeypatch):
    quick = partialmethod(Transport.tell, patience=0.1)
    monkeypatch.setattr(Transport, "tell", quick)
    with serving(Full(weights / "actor", GRAMMAR)) as engine:
        first, second = (asked_of(engine, adapter=str(folder)) for folder in adapters[:2])
        actor = ServedActor.from_config(first, GRAMMAR)
        before = actor.act([STATE], [3])
        with pytest.raises(ServerError, match="in the end 500 .*No free lora slots"):
            ServedActor.from_config(second, GRAMMAR)
        assert list(engine.adapters) == [actor.adapter] and actor.act([STATE], [3]) == before
        engine.adapters.clear()
        assert ServedActor.from_config(second, GRAMMAR).adapter in engine.adapters
        engine.max_rank = 0  # it was started again, without adapters
        with pytest.raises(ServerError, match="load_lora_adapter: refused, with 404 .*Not Found"):
            actor.act([STATE], [3])


class Far(Engine):
    """Says the smallest log-probability that vLLM can write, of every token."""

    def _choice(self, actor, prompt, completion):
        far = {"token_logprobs": [-9999.0] * len(completion.token_ids)}
        return super()._choice(actor, prompt, completion) | {"logprobs": far}


def test_weights_beyond_all_numbers_are_weighed_all_the_same(weights):
    """Each completion is e^9990 times as probable here for each of its tokens."""
    with serving(Far(weights / "actor", GRAMMAR)) as engine:
        actor = ServedActor.from_config(asked_of(engine), GRAMMAR)
        figures = drift(actor, [STATE] * 8, range(8))
    assert 1 / 8 <= figures["served/effective_samples"] <= 1
    assert 9900 < figures["served/mean_drift"] <= figures["served/largest_drift"] <= 9999
