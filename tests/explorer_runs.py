"""A pipeline's run folder for the explorer: three rounds on a grid of 3x3, no models."""

import base64
import gzip
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from run_folders import GAMMA, GRID, hostile_trajectory, play, write_run

from lactchain import Action, make_language_env, open_run, write_trajectories
from lactchain.data import evaluations
from lactchain.data.preferences import Candidates, make_pairs, write_pairs
from lactchain.environments.exact import optimal_chains, optimal_values, shortest_paths
from lactchain.environments.views import tabular_model
from lactchain_extras.explorer.recording import answer_row, write_tables
from lactchain_extras.explorer.report import render

COSTS = {"invalid_penalty": -0.1, "chain_cost": 0.02}
CONFIG = replace(GRID, kwargs={"size": 3}, max_chains=4, max_chain_length=4, **COSTS)
SKILL = {0: 0.2, 1: 0.6, 2: 0.95}
"""How often the policy of a round plays well; the last is that of the run."""
NONSENSE = "I would rather <b>not</b> $ay"


def unpack(text: str) -> dict[str, list]:
    """The columns of a table as a page holds it, as its script reads them."""
    content = json.loads(gzip.decompress(base64.b64decode(text)))
    return {
        name: held if isinstance(held, list) else [held["words"][code] for code in held["codes"]]
        for name, held in content.items()
    }


class GridRun:
    """Writes the folder; what is in it can be computed again from its attributes."""

    def __init__(self, directory: Path, hostile: bool = False, skill=0.95, seed: int = 0) -> None:
        self.directory, self.draw, self.seed = directory, np.random.default_rng(0), seed
        self.skill = SKILL | {2: skill}
        self.env = make_language_env(CONFIG)
        self.model = tabular_model(self.env.env)
        self.states = self.model.non_terminal_states
        self.optimal = optimal_values(self.model, GAMMA)
        self.best = optimal_chains(self.model, CONFIG.max_chain_length)
        self.lengths = shortest_paths(self.model)
        noise = {n: self.draw.normal(0, 0.2 / n, len(self.states)) for n in (1, 2)}
        self.values = {n: self.optimal + noise[n] for n in noise}
        self.judged = self.optimal - 0.3
        """Exact values of the policy that the critic of round 1 judges; of round 2, unknown."""
        self._write(hostile)

    def _write(self, hostile: bool) -> None:
        environment = {"environment": vars(CONFIG)}
        summary = {"seed": self.seed, "num_pairs": 9, "num_env_steps": 4321, "round": 2}
        summary |= {"round_1/critic_r2": 0.9 - self.seed / 10}
        write_run(self.directory, {"run": {"seed": self.seed}} | environment, 3, summary)
        with (self.directory / "metrics.jsonl").open("a") as file:
            for number, skill in self.skill.items():
                file.write(json.dumps({"step": number, "eval/success_rate": skill}) + "\n")
        write_run(self.directory / "warm_start", environment, 20, {"loss": 0.5})
        for number in SKILL:
            if number:
                self._write_training(number, environment)
            self._write_evaluation(number, environment, hostile and number == 2)
            self._write_inspection(number)

    def _write_training(self, number: int, environment: dict) -> None:
        folder = self.directory / f"round_{number}"
        values = tuple(self.values[number].tolist())
        write_run(folder / "critic", environment, 15, {"loss": 0.1}, 1000 * number)
        exact = tuple(self.optimal.tolist())
        told = evaluations.StateValues(tuple(self.states), values, exact, GAMMA)
        evaluations.write_values(folder / "critic/values.json", told)
        pairs, dropped = make_pairs([self._candidates(n) for n in range(0, 60, 7)])
        summary = {f"pairs/dropped_{reason}": count for reason, count in dropped.items()}
        summary["pairs/dropped_margin"] = 3 * number
        write_run(folder / "simpo", environment, 12, summary, 1000 * number + 500)
        write_pairs(folder / "simpo/pairs/0.parquet", pairs)
        evaluations.write_pairs_after(folder / "simpo/pairs_after.json", {0: (-0.5, -7.25)})

    def _write_evaluation(self, number: int, environment: dict, hostile: bool) -> None:
        folder = self.directory / f"round_{number}/evaluation"
        write_run(folder, environment, 1, {"success_rate": 0.5}, 1000 * number + 900)
        policy, told = self._policy(self.skill[number]), f"round {number}"
        self.played = [play(self.env, policy, n, s, told) for n, s in enumerate(self.states)]
        extra = [hostile_trajectory()] if hostile else []
        write_trajectories(folder / "trajectories/0.parquet", self.played + extra)
        results = [*map(self._result, self.played, self.lengths)]
        evaluations.write_episodes(folder / "episodes.json", results)

    def _result(self, trajectory, length: int) -> evaluations.EpisodeResult:
        counts = {"num_chains": len(trajectory), "num_actions": sum(trajectory.num_actions)}
        state, success = trajectory.infos[0]["state"], trajectory.terminated
        return evaluations.EpisodeResult(state, success, **counts, shortest=int(length))

    def _policy(self, skill: float):
        def completion(_: str) -> str:
            luck = self.draw.random()
            if luck > 0.98:
                return NONSENSE
            if luck < skill:
                state = self.env.view.get_state(self.env.env)
                return self.env.grammar.render(self.best[self.model.row(state)])
            return self.env.grammar.render([1] * int(self.draw.integers(1, 4)))

        return completion

    def _write_inspection(self, number: int) -> None:
        known = self.values.get(number)
        answers = [self._answer(n, played, known) for n, played in enumerate(self.played)]
        unknown = {"score": None} if known is None else {}
        candidates = [row | unknown for n in range(len(answers)) for row in self._others(n)]
        meta = {"asked": len(self.states), "of": len(self.states), "sampled": False}
        meta |= {"critic": None if known is None else f"round_{number}/critic/critic"}
        meta |= {"gamma": GAMMA, "discount_per": "action"}
        folder = self.directory / f"round_{number}/inspection"
        write_tables(folder, meta, answers=answers, candidates=candidates)

    def _answer(self, n: int, trajectory, values) -> dict:
        text, after = trajectory.actions[0].text, trajectory.infos[1]
        told = answer_row(n, trajectory)
        value = None if values is None else float(values[n])
        later = 0.0
        if values is not None and not told["terminated"]:
            later = float(values[self.model.row(after["state"])])
        discounted = sum(r * GAMMA**k for k, r in enumerate(after["rewards"]))
        q = None if value is None else discounted + GAMMA ** len(after["rewards"]) * later
        return told | {
            "completion": text, "tokens": [text[:4], text[4:], "</s>"],
            "probabilities": [0.999, 0.5, 0.9], "success": trajectory.terminated,
            "value": value, "q": q, "advantage": None if value is None else q - value,
            "optimal": float(self.optimal[n]),
            "policy_value": float(self.judged[n]) if values is self.values[1] else None,
            "shortest": int(self.lengths[n]),
        }  # fmt: skip

    def _others(self, n: int) -> list[dict]:
        nonsense = {"state_id": n, "completion": NONSENSE, "tokens": [NONSENSE, "</s>"]}
        nonsense |= {"probabilities": [], "probability": None, "count": 0, "reward": -0.1}
        nonsense |= {"score": -0.1, "invalid": True, "chosen": False, "rejected": True}
        return [nonsense] * (n % 8 == 0) + [
            {
                "state_id": n,
                "completion": self.env.grammar.render(chain),
                "tokens": ["[", *(self.env.grammar.action_names[a] for a in chain), "]"],
                "probabilities": [1.0, *(0.5 for _ in chain), 0.75],
                "probability": 0.75 * 0.5 ** len(chain),
                "count": 3 - k,
                "reward": 0.5 - k,
                "score": 0.25 * k - self.seed / 8,
                "invalid": False,
                "chosen": k == 2,
                "rejected": k == 0,
            }  # fmt: skip
            for k, chain in enumerate(([0, 1], [0, 0, 1], [1]))
        ]

    def _candidates(self, n: int) -> Candidates:
        best, state = self.env.grammar.render(self.best[n]), self.states[n]
        texts = (best, self.env.grammar.render([0]), NONSENSE)
        return Candidates(
            observation=GRID.template.format(**state, feedback=""), state=state,
            actions=tuple(Action(text, (k,)) for k, text in enumerate(texts)),
            returns=(1.0, 0.0, -0.1), advantages=(1.0 + n / 100, 0.0, -0.5),
            is_chain=(True, True, False),
        )  # fmt: skip


class Page(HTMLParser):
    """Tags, attributes and texts of a page; texts of scripts and styles apart."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.scripts: list[list] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append([dict(attrs), ""])

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1][1] += data
        elif self.cdata_elem is None and data.strip():  # between two tags is the layout
            self.texts.append(data.strip())

    def table(self, name: str) -> dict[str, list]:
        return unpack(next(text for kind, text in self.scripts if kind.get("data-table") == name))

    def assert_harmless(self):
        names = {name for name, _ in self.attributes}
        assert not {name for name in names if name.startswith("on")}
        assert not names & {"src", "href", "srcdoc", "action", "xlink:href"}
        assert not {"img", "iframe", "form", "link", "object", "embed"} & set(self.tags)


def page_of(run, **options) -> Page:
    return Page(render(open_run(run), **options))
