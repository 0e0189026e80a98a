"""A packed row scores every completion as the model does alone, and so are its gradients."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from nodus.trainer import scoring
from nodus.trainer.scoring import add_scoring, pack, score, supports_packing

pytestmark = pytest.mark.timeout(240)  # the first of them imports torch and transformers

PAD = 0
PROMPTS = [[7, 8, 9], [7, 8, 9], [10, 11, 12, 13], [7, 8, 9]]
COMPLETIONS = [[20, 21, 22, 23], [24, 1], [25, 26, 27], [28]]


def batch():
    width, columns = max(map(len, PROMPTS)), max(map(len, COMPLETIONS))
    ids, mask = [], []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        left, right = width - len(prompt), columns - len(completion)
        ids.append([PAD] * left + prompt + completion + [PAD] * right)
        mask.append([0] * left + [1] * (len(prompt) + len(completion)) + [0] * right)
    return torch.tensor(ids), torch.tensor(mask), columns


def alone(model, temperature):
    """Log-probabilities and entropies of each completion from its own forward pass, padded with zeros."""
    columns = max(map(len, COMPLETIONS))
    log_probs, entropies = torch.zeros(4, columns), torch.zeros(4, columns)
    rows = []
    for n, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
        table = logits.log_softmax(-1)
        row = table.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)
        rows.append(row)
        log_probs[n, : len(completion)] = row
        entropies[n, : len(completion)] = -(table.exp() * table).sum(-1)
    return log_probs, entropies


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("limit", [2048, 6])
def test_packed_scores_and_gradients_equal_those_of_each_completion_alone(tiny_dir, attention, limit, monkeypatch):
    monkeypatch.setattr(scoring, "PACKED_TOKENS", limit)
    temperature = 0.7
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, attn_implementation=attention)
    weights = torch.arange(16.0).reshape(4, 4)
    expected, entropy = alone(model, temperature)
    (expected * weights).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()

    add_scoring(model, temperature)
    ids, mask, columns = batch()
    packed = pack(ids, mask, columns, PAD)
    ours, ours_entropy = score(model, packed, (4, columns), torch.float32)
    (ours * weights).sum().backward()

    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours_entropy, entropy, atol=1e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4, rtol=1e-4)


def test_completions_of_one_prompt_share_a_row():
    ids, mask, columns = batch()
    packed = pack(ids, mask, columns, PAD)
    # 3 prompt tokens and all but the last token of completions of 4, 2 and 1; 4 prompt tokens and 2 of 3.
    assert packed.ids_RL.tolist() == [[7, 8, 9, 20, 21, 22, 24], [10, 11, 12, 13, 25, 26, 0]]
    assert packed.positions_RL.tolist()[0] == [0, 1, 2, 3, 4, 5, 3]
    assert packed.labels_S.tolist() == [20, 21, 22, 23, 24, 1, 28, 25, 26, 27]


def test_completion_sees_its_prompt_and_itself_alone():
    ids, mask, columns = batch()
    seen = pack(ids, mask, columns, PAD).mask_R1LL[0, 0]
    assert seen[5].tolist() == [True, True, True, True, True, True, False]
    assert seen[6].tolist() == [True, True, True, False, False, False, True]


def test_only_the_models_own_tokens_are_scored_and_what_follows_the_last_is_not_run():
    ids, mask, columns = batch()
    own = torch.tensor([[1, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1]])
    packed = pack(ids, mask, columns, PAD, own)
    # Of 20 21 22 23 the outer two; of 25 26 27 the second, so that 27 is in no row.
    assert packed.ids_RL.tolist() == [[7, 8, 9, 20, 21, 22, 24], [10, 11, 12, 13, 25, 0, 0]]
    assert packed.labels_S.tolist() == [20, 23, 24, 1, 28, 26]
    assert packed.into_S.tolist() == [0, 3, 4, 5, 12, 9]
    assert [packed.ids_RL.flatten()[at].item() for at in packed.at_S] == [9, 22, 9, 24, 9, 25]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_scores_and_gradients_of_own_tokens_equal_those_of_each_completion_alone(tiny_dir, attention):
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, attn_implementation=attention)
    own = torch.tensor([[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]])
    weights = torch.arange(1.0, 17.0).reshape(4, 4)
    expected, entropy = (values * own for values in alone(model, 0.7))
    (expected * weights).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    add_scoring(model, 0.7)
    ids, mask, columns = batch()
    ours, ours_entropy = score(model, pack(ids, mask, columns, PAD, own), (4, columns), torch.float32)
    (ours * weights).sum().backward()
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours_entropy, entropy, atol=1e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4, rtol=1e-4)


def test_masked_completion_is_scored_nowhere(tiny):
    add_scoring(tiny, 1.0)
    ids, mask, columns = batch()
    mask[1, -columns:] = 0
    log_probs, _ = score(tiny, pack(ids, mask, columns, PAD), (4, columns), torch.float32)
    assert log_probs[1].tolist() == [0.0] * columns
    assert (log_probs[0] != 0).all()


def test_batch_without_completions_still_runs(tiny):
    add_scoring(tiny, 1.0)
    ids, mask, columns = batch()
    mask[:, -columns:] = 0
    log_probs, _ = score(tiny, pack(ids, mask, columns, PAD), (4, columns), torch.float32)
    assert log_probs.abs().sum() == 0
    log_probs.sum().backward()


def test_model_without_the_keyword_is_unchanged(tiny):
    ids = torch.tensor([[7, 8, 9]])
    before = tiny(ids).logits
    add_scoring(tiny, 1.0)
    assert torch.equal(before, tiny(ids).logits)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"sliding_window": 128}, False),
        ({"sliding_window": 128, "use_sliding_window": False}, True),
        ({"final_logit_softcapping": 30.0}, False),
        ({"model_type": "gemma3"}, False),
    ],
)
def test_only_plain_full_attention_is_packed(tiny, change, expected):
    for name, value in change.items():
        setattr(tiny.config, name, value)
    assert supports_packing(tiny) is expected


def test_gradients_of_a_large_batch_are_the_same_every_time(tiny_dir):
    # Large enough for torch to spread the gathering of scored positions over its threads.
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(6, 70, (64, 40), generator=generator)
    ids[:, :8] = ids[0, :8]
    found = []
    for _ in range(5):
        model = AutoModelForCausalLM.from_pretrained(tiny_dir)
        add_scoring(model, 1.0)
        log_probs, _ = score(model, pack(ids, torch.ones_like(ids), 32, PAD), (64, 32), torch.float32)
        log_probs.sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.set_num_threads(threads)
    assert all(torch.equal(found[0][-2000:], other[-2000:]) for other in found[1:])
