"""Our SimPO against TRL's CPOTrainer, which has the same loss under other names."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from training_setups import build_weights, make_simpo, open_run

from lactchain.functional.policy_losses import simpo_loss
from lactchain.functional.tokens import masked_mean
from lactchain.settings import SimPOConfig
from lactchain.trainers.simpo import PreferenceCollator, completion_logprobs


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def oracle():
    from trl.experimental.cpo import CPOTrainer

    def losses(chosen, rejected, beta, target_margin):
        settings = SimpleNamespace(
            alpha=0.0,
            beta=beta,
            loss_type="simpo",
            simpo_gamma=target_margin,
            label_smoothing=0.0,
            accelerator=SimpleNamespace(device=torch.device("cpu")),
        )
        return CPOTrainer.cpo_loss(settings, chosen, rejected)

    return losses


@pytest.mark.parametrize(("beta", "target_margin"), [(2.5, 0.25), (2.0, 1.6), (0.1, 0.5)])
def test_loss_equals_trl_on_random_pairs(oracle, beta, target_margin):
    generator = torch.Generator().manual_seed(0)
    chosen, rejected = -3 * torch.rand(2, 10_000, generator=generator, dtype=torch.float64)
    ours, metrics = simpo_loss(chosen, rejected, beta, target_margin)
    theirs, chosen_rewards, rejected_rewards = oracle(chosen, rejected, beta, target_margin)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(metrics["rewards/chosen"], chosen_rewards)
    torch.testing.assert_close(metrics["rewards/rejected"], rejected_rewards)


def test_loss_equals_trl_in_single_precision(oracle):
    generator = torch.Generator().manual_seed(1)
    chosen, rejected = -3 * torch.rand(2, 10_000, generator=generator)
    ours, _ = simpo_loss(chosen, rejected, 2.5, 0.25)
    torch.testing.assert_close(ours, oracle(chosen, rejected, 2.5, 0.25)[0], atol=1e-6, rtol=0)


def test_trainer_loss_equals_trl_from_full_logits(oracle, weights, run_dir):
    """From padded batch to loss, against TRL's own steps: all logits, shift, mask, average, NLL."""
    from trl.experimental.cpo import CPOTrainer

    with open_run(run_dir) as run:
        trainer = make_simpo(weights, run, lora=False)
        trainer.settings = SimPOConfig(beta=2.0, target_margin=0.5, nll_weight=0.3)
        batch = trainer.data_collator(trainer.train_dataset[:7])
        ours = trainer.compute_loss(trainer.model, batch)
    ids, attention = (batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask"))
    labels = ids.masked_fill(batch["completion_mask"].flatten(0, 1) == 0, -100)
    logits = trainer.model(input_ids=ids, attention_mask=attention).logits
    logps = CPOTrainer.get_batch_logps(logits, labels, average_log_prob=True)
    losses, *_ = oracle(logps[::2], logps[1::2], 2.0, 0.5)
    nll = F.cross_entropy(logits[::2, :-1].flatten(0, 1), labels[::2, 1:].flatten())
    torch.testing.assert_close(ours, losses.mean() + 0.3 * nll, atol=1e-6, rtol=0)


def test_padding_and_neighbours_do_not_change_log_probabilities(weights, run_dir):
    with open_run(run_dir) as run:
        trainer = make_simpo(weights, run, lora=False)
    row = {"prompt_ids": [7, 8], "chosen_ids": [9, 10, 1], "rejected_ids": [11, 1]}
    longer = {"prompt_ids": [9] * 6, "chosen_ids": [12] * 5, "rejected_ids": [13] * 9}
    model = trainer.model.eval()

    def first_logps(rows):
        batch = PreferenceCollator(0)(rows)
        flat = {name: tensor.flatten(0, 1) for name, tensor in batch.items()}
        logprobs, mask = completion_logprobs(model, **flat)
        return masked_mean(logprobs, mask, dim=1)[:2]

    torch.testing.assert_close(first_logps([row]), first_logps([row, longer]))


def test_completion_log_probabilities_are_those_of_the_whole_sequence(weights, run_dir):
    with open_run(run_dir) as run:
        model = make_simpo(weights, run, lora=False).model.eval()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    expected = model(input_ids=ids).logits.log_softmax(-1)[0, [2, 3], [8, 9]]
    mask = torch.tensor([[0, 0, 0, 1, 1]])
    actual, kept = completion_logprobs(model, ids, torch.ones_like(ids), mask)
    assert kept.tolist() == [[True, True]]
    torch.testing.assert_close(actual[0], expected)
