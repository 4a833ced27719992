"""Our SimPO against TRL's CPOTrainer, which has the same loss under other names."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from training_setups import build_weights, make_simpo, open_run

from lactchain.config.settings import SimPOConfig
from lactchain.functional.policy_losses import simpo_loss
from lactchain.functional.tokens import pad
from lactchain.trainers.simpo import CHOSEN, REJECTED, PreferenceCollator, completion_logprobs


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
    rows = trainer.train_dataset[:7]
    texts = [(row["prompt_ids"], row[k]) for row in rows for k in ("chosen_ids", "rejected_ids")]
    ids = pad([prompt + completion for prompt, completion in texts], 0)
    labels = pad([[-100] * len(prompt) + completion for prompt, completion in texts], -100)
    logits = trainer.model(input_ids=ids).logits
    logps = CPOTrainer.get_batch_logps(logits, labels, average_log_prob=True)
    losses, *_ = oracle(logps[::2], logps[1::2], 2.0, 0.5)
    nll = F.cross_entropy(logits[::2, :-1].flatten(0, 1), labels[::2, 1:].flatten())
    torch.testing.assert_close(ours, losses.mean() + 0.3 * nll, atol=1e-6, rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one_sequence_per_pair_gives_what_two_sequences_give(attention, weights, run_dir):
    """Prompts of different lengths, one token among them; both kinds of attention."""
    with open_run(run_dir) as run:
        model = make_simpo(weights, run, lora=False).model.eval()
    model.set_attn_implementation(attention)
    rows = [
        {"prompt_ids": [7], "chosen_ids": [9, 10, 1], "rejected_ids": [11, 1]},
        {"prompt_ids": [7, 8, 9, 10, 11, 12], "chosen_ids": [12], "rejected_ids": [13] * 9},
    ]
    logprobs, side = completion_logprobs(
        model, **PreferenceCollator(0)(rows), config=model.config, dtype=torch.float32
    )
    for i, row in enumerate(rows):
        for branch, name in ((CHOSEN, "chosen_ids"), (REJECTED, "rejected_ids")):
            prompt, completion = row["prompt_ids"], torch.tensor(row[name])
            logits = model(input_ids=torch.tensor([prompt + row[name]])).logits[0]
            expected = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, completion[:, None])
            torch.testing.assert_close(logprobs[i][side[i] == branch], expected[:, 0])
