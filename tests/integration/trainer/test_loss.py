"""The loss is TRL's, and a completion whose grader could not run is in no part of it."""

import copy
import math

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from nodus.trainer.grpo_config import lora_arguments
from nodus.trainer.grpo_trainer import EpochSampler

pytestmark = pytest.mark.timeout(240)  # the first of them imports torch and transformers


def shake(model, seed=7):
    """Give an adapter weights that change what the model says: a fresh one changes nothing."""
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def plain_trainer(trainer, parameters, tiny_dir, tokenizer):
    """TRL's own trainer with the same configuration, model and adapter weights."""
    args = copy.copy(trainer.args)
    plain = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_dir),
        args=args,
        reward_funcs=lambda **_: [],
        train_dataset=trainer.train_dataset,
        processing_class=tokenizer,
        peft_config=LoraConfig(**lora_arguments(parameters)),
    )
    shake(plain.model)
    return plain


def sampled(made, **parameters):
    """A prepared run with a shaken adapter, and its first generation batch."""
    made.trainer.model.train()
    shake(made.trainer.model)
    made.trainer.current_gradient_accumulation_steps = 1
    rows = [made.trainer.train_dataset[i] for i in (0, 0, 0, 0, 1, 1, 1, 1)]
    return made.trainer._generate_and_score_completions(rows)


@pytest.mark.parametrize("beta", [0, 0.1])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_loss_and_gradients_equal_trls_for_the_same_batch(prepare, tiny_dir, beta, temperature):
    made = prepare(beta=beta, sampling={"temperature": temperature})
    batch = sampled(made)
    plain = plain_trainer(made.trainer, made.session.spec.parameters, tiny_dir, made.session.tokenizer)
    plain.current_gradient_accumulation_steps = 1
    plain.model.train()
    assert bool((batch["advantages"] != 0).any())

    theirs = plain._compute_loss(plain.model, batch)
    theirs.backward()
    made.trainer._buffered_inputs = [batch, batch]
    ours = made.trainer._compute_loss(made.trainer.model, batch)
    ours.backward()

    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    expected, found = gradients(plain.model), gradients(made.trainer.model)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)


def test_failed_grader_leaves_its_completion_out_of_baseline_and_loss(prepare):
    # Group 0: rewards 1, 0 and two that could not be graded. Group 1: one scored alone.
    rewards = {("t0", 0): 1.0, ("t0", 1): 0.0, ("t1", 2): 1.0}
    asked = []

    def grade(task_id, completion):
        key = (task_id, sum(task == task_id for task in asked))
        asked.append(task_id)
        return rewards[key]  # a KeyError is a grader that could not run

    made = prepare(grade)
    made.server._stop_when_failing = lambda: None
    batch = sampled(made)

    # By hand: mean 0.5 and deviation sqrt(0.5) over the two that were scored.
    advantage = 0.5 / (math.sqrt(0.5) + 1e-4)
    expected = torch.tensor([advantage, -advantage, 0, 0, 0, 0, 0, 0])
    torch.testing.assert_close(batch["advantages"], expected)
    scored = [0, 1, 6]
    lengths = batch["completion_mask"].sum(dim=1)
    assert (lengths > 0).tolist() == [i in scored for i in range(8)]
    assert int(batch["num_items_in_batch"]) == int(lengths[scored].sum())
    assert made.trainer.no_contrast_share == 0.5

    # The loss is that of the scored completions alone: the sum of -advantage * probability ratio (1) over their tokens,
    # divided by the number of those tokens, times the share of the batch that one optimizer step has.
    made.trainer._buffered_inputs = [batch, batch]
    loss = made.trainer._compute_loss(made.trainer.model, batch)
    by_hand = -(expected[scored] * lengths[scored]).sum() / lengths[scored].sum()
    steps = made.trainer.args.steps_per_generation
    torch.testing.assert_close(loss.detach() / steps, by_hand, atol=1e-5, rtol=1e-5)


def test_gradient_is_that_of_the_batch_without_the_failed_completions(prepare):
    failing = {"t0": {2}, "t1": {0}}
    asked = []

    def grade(task_id, completion):
        number = sum(task == task_id for task in asked)
        asked.append(task_id)
        if number in failing[task_id]:
            raise RuntimeError("could not run")
        return float(number % 2)

    made = prepare(grade, beta=0.1)
    batch = sampled(made)
    trainer = made.trainer
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    with_all = gradients(trainer.model)
    trainer.model.zero_grad()

    kept = torch.tensor([0, 1, 3, 5, 6, 7])
    smaller = {k: v[kept] if isinstance(v, torch.Tensor) and v.ndim else v for k, v in batch.items()}
    loss_of_kept = trainer._compute_loss(trainer.model, smaller)
    loss_of_kept.backward()
    torch.testing.assert_close(loss, loss_of_kept, atol=1e-6, rtol=1e-5)
    for name, gradient in gradients(trainer.model).items():
        torch.testing.assert_close(gradient, with_all[name], atol=1e-6, rtol=1e-4)


def test_equal_rewards_give_zero_gradients_and_show_in_the_figures(prepare):
    made = prepare(lambda task, text: 1.0)
    batch = sampled(made)
    assert made.trainer.no_contrast_share == 1.0
    made.trainer._buffered_inputs = [batch, batch]
    made.trainer._compute_loss(made.trainer.model, batch).backward()
    found = gradients(made.trainer.model)
    trained = [name for name, p in made.trainer.model.named_parameters() if p.requires_grad]
    assert sorted(found) == sorted(trained)
    assert all(not gradient.any() for gradient in found.values())


def test_kl_is_measured_with_the_adapter_off(prepare):
    made = prepare()
    batch = sampled(made)
    trainer = made.trainer
    trainer._buffered_inputs = [batch, batch]
    trainer._measure_kl()
    mask = batch["completion_mask"][:4]
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)[:4]
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)[:4]
    columns = mask.size(1)

    def log_probs():
        logits = trainer.model(input_ids=ids, attention_mask=attention).logits[:, -columns - 1 : -1]
        return logits.log_softmax(-1).gather(2, ids[:, -columns:].unsqueeze(2)).squeeze(2)

    with torch.no_grad():
        policy = log_probs()
        with trainer.model.disable_adapter():
            difference = log_probs() - policy
    expected = float(((difference.exp() - difference - 1) * mask).sum() / mask.sum())
    assert trainer.figures.kl == pytest.approx(expected, rel=1e-3)
    assert trainer.figures.kl > 0
    assert trainer.figures.kl_seconds > 0


@pytest.mark.parametrize(("tasks", "per_batch"), [(16, 2), (7, 3)])
def test_task_order_is_trls_and_a_function_of_the_epoch(tasks, per_batch):
    theirs = RepeatSampler(list(range(tasks)), 4, per_batch, 2, shuffle=True, seed=3)
    ours = EpochSampler(tasks, 4, per_batch, 2, 3)
    assert len(ours) == len(theirs)
    orders = [list(theirs) for _ in range(3)]
    for epoch in (2, 0, 1):
        ours.set_epoch(epoch)
        assert list(ours) == orders[epoch]
