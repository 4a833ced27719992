"""ILQL and MC on the token view: against a loop, on a text MDP with known values, in parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from training_setups import ILQL, MAKERS, MC, SHAPE, arguments, value_data, value_episodes

from lactchain import Action, ChainGrammar, GuidedActorConfig, TrainingConfig, Trajectory
from lactchain.models.loading import load_tokenizer
from lactchain.models.prompting import PromptTemplate
from lactchain.models.tiny import build_tiny_actor
from lactchain.runs.process import seed_everything
from lactchain.trainers.base import save_result, train
from lactchain_extras.token_values.guidance import CompletionRanking, TrainedValues
from lactchain_extras.token_values.model import ValueModel
from lactchain_extras.token_values.settings import ILQLConfig
from lactchain_extras.token_values.token_view import mean_return, token_view
from lactchain_extras.token_values.trainers import ERROR_WEIGHT, ILQLTrainer


def shaken(trainer):
    """The trainer without dropout, its heads and target network at random places."""
    torch.manual_seed(1)
    model = trainer.values.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "head" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
        for tensor in model.target.values():
            tensor.add_(0.02 * torch.randn_like(tensor))
    return trainer


def alone(model, ids, target=False):
    """Q (N, L, V) and V (L,) along one plain sequence: no tree, no cache, no positions given."""
    model = model.target_network() if target else model
    states = model.trunk(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    hidden = states[-1][0]
    return torch.stack([head(hidden) for head in model.q_heads]), model.v_head(hidden).squeeze(-1)


def decisions_of(view):
    """In turn: prompt, completion, next prompt, reward, terminated, last of its episode."""
    before, after = ([view.prompts[n] for n in rows] for rows in (view.prompt_tm1, view.prompt_t))
    said, terminated = [view.completions[n] for n in view.completion_tm1], view.discounts == 0
    return [*zip(before, said, after, view.rewards, terminated, view.last, strict=True)]


@torch.no_grad()
def ilql_by_loops(model, view, settings):
    """ILQL's loss as in the paper, a token at a time; if so set, over the rest of a completion."""
    parts = []
    for prompt, completion, after, reward, terminated, _ in decisions_of(view):
        q, v = alone(model, prompt + completion)
        target, _ = alone(model, prompt + completion, target=True)
        behind = alone(model, after)[1][-1] * (not terminated)
        for i, token in enumerate(completion):
            here = len(prompt) - 1 + i
            last = i == len(completion) - 1
            following = behind if last else v[here + 1]
            y = (reward if last else 0.0) + settings.gamma * following
            if settings.bootstrap == "completion":
                discount = settings.gamma ** (len(completion) - i)
                y = discount / settings.gamma * reward + discount * behind
            error = min(head[here, token] for head in target) - v[here]
            side = settings.expectile if error >= 0 else 1 - settings.expectile
            loss = ERROR_WEIGHT * side * error**2
            for head in q:
                gap = torch.log(torch.exp(head[here]).sum()) - head[here, token]
                loss += ERROR_WEIGHT * (head[here, token] - y) ** 2
                loss += settings.cql_weight * gap
            parts.append(loss)
    return float(sum(parts) / len(parts))


@torch.no_grad()
def mc_by_loops(model, view, settings):
    """The Monte-Carlo loss, with the return behind a token summed up forwards."""
    parts, decisions = [], decisions_of(view)
    for row, (prompt, completion, *_) in enumerate(decisions):
        q, v = alone(model, prompt + completion)
        for i, token in enumerate(completion):
            discount, total, place = 1.0, 0.0, i
            for _, said, after, reward, terminated, last in decisions[row:]:
                discount *= settings.gamma ** (len(said) - 1 - place)
                total += discount * reward
                discount *= settings.gamma
                place = 0
                if last:
                    total += discount * (0.0 if terminated else float(alone(model, after)[1][-1]))
                    break
            here = len(prompt) - 1 + i
            gap = torch.log(torch.exp(q[0, here]).sum()) - q[0, here, token]
            errors = (q[0, here, token] - total) ** 2 + (v[here] - total) ** 2
            parts.append(ERROR_WEIGHT * errors + settings.cql_weight * gap)
    return float(sum(parts) / len(parts))


def batch_of(trainer):
    """All data of a trainer in one batch."""
    return trainer.data_collator([*trainer.train_dataset])


def loss_of(trainer):
    return trainer.compute_loss(trainer.values, batch_of(trainer)).item()


@pytest.mark.parametrize("group_by", ["prompt", "episode"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize(("kind", "settings"), [
    ("ilql", ILQL), ("ilql", replace(ILQL, bootstrap="completion")), ("mc", MC),
])  # fmt: skip
def test_the_loss_is_that_of_a_loop_over_tokens(kind, settings, lora, group_by, tiny, run):
    settings = replace(settings, group_by=group_by)
    trainer = shaken(MAKERS[kind](tiny, run, lora=lora, **{kind: settings}))
    view = value_data(tiny, lora=False)[1]
    by_loops = {"ilql": ilql_by_loops, "mc": mc_by_loops}[kind](trainer.values, view, settings)
    np.testing.assert_allclose(loss_of(trainer), by_loops, rtol=1e-5)


@pytest.mark.parametrize("factor", [1, 3], ids=["of equal rewards", "of other rewards"])
@pytest.mark.parametrize("kind", ["ilql", "mc"])
def test_merged_decisions_give_the_loss_and_gradient_of_all(kind, factor, tiny, run):
    """Three times every episode, the second of them twice more: merged or one by one."""
    tokenizer = load_tokenizer(tiny / "actor", padding_side="left", chat=True)
    episodes = value_episodes()
    others = [replace(e, rewards=tuple(factor * r for r in e.rewards)) for e in episodes]
    played = [*episodes, *others, *others, others[1], others[1]]
    view = token_view(played, PromptTemplate(tokenizer), tokenizer)
    losses, gradients = [], []
    for group_by in ("prompt", "episode"):
        settings = replace({"ilql": ILQL, "mc": MC}[kind], group_by=group_by)
        made = MAKERS[kind](tiny, run, lora=False, **{kind: settings})
        trainer = shaken(type(made)(made.values, made.args, view, settings, run=run))
        loss = trainer.compute_loss(trainer.values, batch_of(trainer))
        loss.backward()
        losses.append(loss.item())
        parameters = trainer.values.parameters()
        gradients.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
        merged = len(trainer.data_collator.targets)
        assert merged == len(view) == 61 if group_by == "episode" else merged == 19
    if factor == 1:  # else the losses differ, by the variance of the rewards
        np.testing.assert_allclose(*losses, rtol=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def test_prompts_that_a_batch_does_not_answer_are_valued_all_the_same(tiny, run):
    """Group by group, each with what follows it beside its trees: together the loss of all."""
    trainer = shaken(MAKERS["ilql"](tiny, run, lora=False, ilql=ILQL))
    batches = [trainer.data_collator([row]) for row in trainer.train_dataset]
    assert sum("behind_nodes" in batch for batch in batches) > len(batches) / 2
    losses = [trainer.compute_loss(trainer.values, batch).item() for batch in batches]
    together = np.average(losses, weights=[len(batch["action"]) for batch in batches])
    np.testing.assert_allclose(together, loss_of(trainer), rtol=1e-5)


def test_one_update_moves_the_target_network_by_tau(tiny, run):
    trainer = MAKERS["ilql"](tiny, run, lora=True, settings=TrainingConfig(max_steps=1))
    before = {name: t.clone() for name, t in trainer.values.target.items()}
    trainer.train()
    after = dict(trainer.values.named_parameters())
    assert {n for n, p in after.items() if p.requires_grad} > before.keys()
    assert any("lora" in n for n in before) and any("q_heads" in n for n in before)
    assert not any("v_head" in n or "embed" in n for n in before)
    for name, tensor in trainer.values.target.items():
        torch.testing.assert_close(tensor, 0.9 * before[name] + 0.1 * after[name])


def test_a_target_network_to_act_with_holds_no_second_base(tiny, run):
    model = shaken(MAKERS["ilql"](tiny, run, lora=True)).values
    own, other = dict(model.named_parameters()), dict(model.target_network().named_parameters())
    assert {name for name in own if other[name] is not own[name]} == model.target.keys()
    assert all(torch.equal(other[name], tensor) for name, tensor in model.target.items())


# A corridor whose last cell is the goal; `l` and `r` and the end of sequence are two tokens.
CELLS = [f"cell {name}" for name in "abcde"]
GAMMA = 0.9


def stroll(rng, start: int, low: int, high: int) -> Trajectory:
    """A random walk that is cut when it leaves its part of the corridor, or after six steps."""
    cells, completions, rewards = [start], [], []
    while cells[-1] != 4 and low <= cells[-1] <= high and len(completions) < 6:
        right = bool(rng.integers(2))
        cells.append(max(0, cells[-1] + (1 if right else -1)))
        completions.append(Action("r" if right else "l"))
        rewards.append(0.0 if cells[-1] == 4 else -1.0)
    texts, ended = tuple(CELLS[c] for c in cells), cells[-1] == 4
    infos = ({},) * len(texts)
    return Trajectory("t", 0, texts, tuple(completions), tuple(rewards), infos, ended, not ended)


def optimal_q() -> np.ndarray:
    """Q*(cell, last token of `l` or `r`) (4, 2), of the token MDP, by value iteration."""
    q = np.zeros((4, 2))
    for _ in range(200):
        v = np.append(GAMMA * q.max(axis=1), 0.0)
        for cell in range(4):
            for action, after in enumerate((max(0, cell - 1), cell + 1)):
                q[cell, action] = (0.0 if after == 4 else -1.0) + GAMMA * v[after]
    return q


def test_ilql_stitches_what_no_episode_shows_whole(run, tmp_path):
    """Random walks in either half of a corridor: the greedy policy goes all the way, Q is Q*."""
    shape = replace(SHAPE, hidden_size=32, intermediate_size=64)
    build_tiny_actor(tmp_path / "actor", [*CELLS, "l", "r"] * 2, shape)
    rng = np.random.default_rng(0)
    halves = ((0, 2), (2, 4))
    episodes = [stroll(rng, rng.integers(a, min(b, 3) + 1), a, b) for a, b in halves * 60]
    assert not any({CELLS[0], CELLS[4]} <= set(e.observations) for e in episodes)
    seed_everything(0, threads=1)
    config = GuidedActorConfig(str(tmp_path / "actor"), values=str(tmp_path / "run/values"))
    tokenizer = load_tokenizer(tmp_path / "actor", padding_side="left", chat=True)
    template = PromptTemplate(tokenizer)
    view = token_view(episodes, template, tokenizer)
    settings = ILQLConfig(gamma=GAMMA, expectile=0.9, tau=0.05, cql_weight=0.001)
    start = mean_return(view, GAMMA)
    model = ValueModel.from_actor(config, method="ilql", gamma=GAMMA, num_q_heads=2, start=start)
    pace = {"max_steps": 400, "learning_rate": 2e-3, "extra": {"adam_beta2": 0.95}}
    training = TrainingConfig(batch_size=5, **pace)
    trainer = ILQLTrainer(model, arguments(training, run), view, settings, run=run)
    train(trainer)
    save_result(trainer, run.path("values"))
    values = TrainedValues(config, tokenizer)
    grammar = ChainGrammar(("l", "r"), 1, "", "", "")
    ranking = CompletionRanking(values, grammar, template, values.target.trunk)
    advantages = ranking.advantages(CELLS[:4])
    assert (advantages.argmax(axis=1) == 1).all()
    found = np.array([
        [float(alone(values.target, template.encode(cell) + said[:1])[0].amin(0)[-1, said[1]])
         for said in (list(action.token_ids) for action in ranking.actions)]
        for cell in CELLS[:4]
    ])  # fmt: skip
    np.testing.assert_allclose(found, optimal_q(), atol=0.3)
