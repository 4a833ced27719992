"""Losses beside SimPO's: against TRL's, against numbers worked out by hand, and against SimPO."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from test_simpo_oracle import their_losses
from training_setups import make_simpo

from lactchain.config.settings import SimPOConfig
from lactchain.trainers.behavior_cloning import CompletionCollator
from lactchain_extras import preference_losses
from lactchain_extras.preference_losses import (
    LOSSES,
    PreferenceLossTrainer,
    Scored,
    ScoredCollator,
)

pytestmark = pytest.mark.extras


def drawn(num_states: int, most: int) -> Scored:
    """Completions of states that have 2 to `most`, under numbers that were drawn."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(2, most + 1, (num_states, 1), generator=generator)
    lengths = torch.randint(1, 9, (num_states, most), generator=generator)
    lengths = lengths * (torch.arange(most) < counts)
    logps, sampled = -2 * torch.rand(2, num_states, most, generator=generator) * lengths
    scores = torch.randn(num_states, most, generator=generator).sort(descending=True).values
    return Scored(logps, sampled, lengths, scores)


@pytest.mark.parametrize(("name", "kind", "values"), [
    ("dpo", "sigmoid", "log_ratios"), ("ipo", "ipo", "log_ratios"), ("slic", "hinge", "logps"),
])  # fmt: skip
def test_losses_of_pairs_equal_trls_by_best_and_worst(name, kind, values):
    rows, beta = drawn(500, 5), 0.7
    table = getattr(rows, values)
    worst = torch.stack([row[int(n) - 1] for row, n in zip(table, rows.exists.sum(1), strict=True)])
    theirs, *_ = their_losses(table[:, 0], worst, beta, loss_type=kind)
    torch.testing.assert_close(LOSSES[name].function(rows, beta=beta), theirs)


def test_orpo_adds_the_log_odds_of_trl_to_the_likelihood():
    from trl.experimental.orpo import ORPOTrainer

    rows, beta = drawn(500, 2), 0.3
    settings = SimpleNamespace(beta=beta, accelerator=SimpleNamespace(device=torch.device("cpu")))
    chosen, rejected = rows.ends(rows.means)
    ratios = ORPOTrainer.odds_ratio_loss(settings, chosen, rejected)[0]
    ours = preference_losses.orpo(rows, beta)
    torch.testing.assert_close(ours, -chosen - ratios, atol=1e-4, rtol=1e-4)


def two_states() -> Scored:
    """One with three completions, one with two; numbers that are easy by hand."""
    return Scored(
        logps=torch.tensor([[-1.0, -4.0, -3.0], [-2.0, -2.0, 0.0]]),
        sampled_logps=torch.tensor([[-2.0, -4.0, -2.0], [-2.0, -2.0, 0.0]]),
        lengths=torch.tensor([[1, 2, 3], [2, 1, 0]]),
        scores=torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 9.0]]),
    )


def test_losses_over_all_completions_match_hand_computed_numbers():
    rows, soft = two_states(), [math.exp(s) for s in (2.0, 0.0, -2.0)]
    weights = [s / sum(soft) for s in soft]  # of scores 1, 0 and -1 at a temperature of .5
    means = [-1.0, -2.0, -1.0]
    log_total = math.log(sum(math.exp(2 * mean) for mean in means))
    first = -sum(w * (2 * mean - log_total) for w, mean in zip(weights, means, strict=True))
    second = -0.5 * (-2.0 - math.log(math.exp(-2) + math.exp(-4)))
    second += -0.5 * (-4.0 - math.log(math.exp(-2) + math.exp(-4)))
    actual = preference_losses.listwise(rows, beta=2.0, temperature=0.5)
    torch.testing.assert_close(actual, torch.tensor([first, second]))
    first = -sum(w * mean for w, mean in zip(weights, means, strict=True))
    actual = preference_losses.weighted_cloning(rows, temperature=0.5)
    torch.testing.assert_close(actual, torch.tensor([first, 1.5]))
    assert preference_losses.cloning(rows).tolist() == [1.0, 1.0]


def test_kto_compares_with_the_distance_from_the_sampler():
    """Log-ratios 1, 0, -1 and 0, 0: the distance is the mean of e^r r - e^r + 1 over five."""
    z = (1 + 0 + (1 - 2 / math.e) + 0 + 0) / 5
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    first = 2 - sigmoid(0.5 * (1 - z)) - sigmoid(0.5 * (z + 1))
    second = 2 - sigmoid(-0.5 * z) - sigmoid(0.5 * z)
    actual = preference_losses.kto(two_states(), beta=0.5)
    torch.testing.assert_close(actual, torch.tensor([first, second]))


@pytest.mark.parametrize("name", LOSSES)
def test_where_all_are_as_likely_a_step_makes_the_best_completion_likelier(name):
    rows = drawn(64, 4)
    logps = (-1.0 * rows.lengths).requires_grad_()
    rows = Scored(logps, logps.detach(), rows.lengths, rows.scores)
    loss = LOSSES[name]
    loss.function(rows, **loss.settings).sum().backward()
    best, worst = rows.ends(-logps.grad)
    assert (best >= 0).all() and best.max() > 0
    assert loss.takes_all or name == "cloning" or (worst <= 0).all()
    assert not logps.grad[~rows.exists].any()


@pytest.mark.parametrize("share", [True, False])
def test_completions_of_states_that_have_unequal_numbers_are_read_as_if_alone(tiny, run, share):
    simpo = make_simpo(tiny, run, lora=False)
    model, tokenizer = simpo.model.eval(), simpo.processing_class
    said = [[[40, 41], [42], [43, 44, 45]], [[50], [51, 52, 53, 54]], [[60], [61], [62], [63, 64]]]
    prompts = [[*range(5, 25), *more] for more in ([30], [31, 32, 33], [34, 35])]
    rows = [
        {"prompt_ids": prompt, "completions": some, "scores": [0.0] * len(some)}
        for prompt, some in zip(prompts, said, strict=True)
    ]
    batch = ScoredCollator(CompletionCollator(tokenizer, share))(rows)
    assert ("prefix_ids" in batch) == share
    scored = preference_losses.score(model, batch, model.dtype)
    assert scored.lengths.tolist() == [[2, 1, 3, 0], [1, 4, 0, 0], [1, 1, 1, 2]]
    for found, prompt, some in zip(scored.logps, prompts, said, strict=True):
        for number, ids in enumerate(some):
            logps = model(torch.tensor([prompt + ids])).logits[0].log_softmax(dim=-1)
            alone = sum(logps[len(prompt) - 1 + i, token] for i, token in enumerate(ids))
            torch.testing.assert_close(found[number], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("share", [True, False])
def test_simpo_from_rows_of_its_own_trainer_has_the_same_loss(tiny, run, share):
    """A row is a pair there, and a completion here, behind a shared beginning or not."""
    simpo = make_simpo(tiny, run, lora=False)
    simpo.settings = SimPOConfig(beta=2.0, target_margin=0.5, nll_weight=0.3)
    pairs = simpo.train_dataset[:7]
    expected = simpo.compute_loss(simpo.model, simpo.data_collator(pairs))
    said = [[pair["chosen_ids"], pair["rejected_ids"]] for pair in pairs]
    rows = [
        {"prompt_ids": pair["prompt_ids"], "completions": both, "scores": [1.0, 0.0]}
        for pair, both in zip(pairs, said, strict=True)
    ]
    loss = partial(preference_losses.simpo, beta=2.0, target_margin=0.5)
    options = {"loss": loss, "nll_weight": 0.3, "run": run}
    ours = PreferenceLossTrainer(simpo.model, simpo.args, rows, simpo.processing_class, **options)
    whole = ScoredCollator(CompletionCollator(simpo.processing_class))
    inputs = (ours.data_collator if share else whole)(ours.train_dataset)
    assert ("prefix_ids" in inputs) == share
    torch.testing.assert_close(ours.compute_loss(ours.model, inputs), expected)
    sums = simpo.completion_logprobs(pairs).float()
    torch.testing.assert_close(inputs["sampled_logps"], sums, atol=1e-5, rtol=1e-5)
