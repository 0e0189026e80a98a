"""Decoding with shared prompts gives what transformers' generate gives, and sampling follows its distribution."""

import inspect

import pytest
import torch

from nodus.trainer import generation
from nodus.trainer.generation import GREEDY, Decoder, Sampling, generate

pytestmark = pytest.mark.timeout(240)  # the first of them imports torch and transformers

PROMPTS = [[7, 8, 9], [10, 11, 12, 13, 14], [15]]


def complete(model, prompts=PROMPTS, *, copies=1, sampling=GREEDY, stop_ids=(1,), tokens=10):
    return generate(
        model, prompts, copies=copies, max_new_tokens=tokens, stop_ids=stop_ids, pad_id=0, sampling=sampling
    )


def test_greedy_equals_transformers_generate_for_each_prompt_alone(tiny):
    ours = [c.tokens for c in complete(tiny)]
    for prompt, tokens in zip(PROMPTS, ours, strict=True):
        whole = tiny.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=10,
            pad_token_id=0,
            eos_token_id=1,
        )
        assert tokens == whole[0, len(prompt) :].tolist()


def test_copies_of_a_prompt_stand_together_and_greedy_ones_are_equal(tiny):
    once = [c.tokens for c in complete(tiny)]
    thrice = [c.tokens for c in complete(tiny, copies=3)]
    assert thrice == [tokens for tokens in once for _ in range(3)]


def test_completion_ends_with_its_stop_token(tiny):
    free = complete(tiny, [PROMPTS[0]])[0].tokens
    stop = free[3]
    stopped = complete(tiny, [PROMPTS[0]], stop_ids=(stop,))[0].tokens
    assert stopped == free[: free.index(stop) + 1]


def test_rows_that_end_early_leave_the_others_as_they_are(tiny):
    free = [c.tokens for c in complete(tiny, stop_ids=())]
    stop = free[0][2]
    expected = [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in free]
    assert [c.tokens for c in complete(tiny, stop_ids=(stop,))] == expected


def test_log_probs_are_those_of_the_model(tiny):
    torch.manual_seed(3)
    completion = complete(tiny, [PROMPTS[1]], sampling=Sampling(temperature=0.5))[0]
    ids = torch.tensor([PROMPTS[1] + completion.tokens])
    logits = tiny(ids).logits[0, len(PROMPTS[1]) - 1 : -1] / 0.5
    expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.tokens).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(completion.log_probs), expected, atol=1e-5, rtol=1e-5)
    table = logits.log_softmax(-1)
    entropies = -(table.exp() * table).sum(-1)
    torch.testing.assert_close(torch.tensor(completion.entropies), entropies, atol=1e-5, rtol=1e-5)


def test_same_seed_samples_the_same_completions(tiny):
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append([c.tokens for c in complete(tiny, copies=4, sampling=Sampling())])
    assert drawn[0] == drawn[1]
    assert len({tuple(tokens) for tokens in drawn[0]}) > 1


def test_greedy_decoding_draws_nothing_and_leaves_the_mode(tiny):
    before = torch.get_rng_state()
    tiny.train()
    complete(tiny)
    assert torch.equal(before, torch.get_rng_state())
    assert tiny.training


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])


def frequencies(sampling, draws=4000):
    torch.manual_seed(0)
    tokens = sampling.choose(LOGITS.expand(draws, -1))
    return torch.bincount(tokens, minlength=4) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_follows_the_tempered_distribution(temperature):
    expected = (LOGITS[0] / temperature).softmax(-1)
    torch.testing.assert_close(frequencies(Sampling(temperature)), expected, atol=0.03, rtol=0)


def test_top_k_keeps_the_k_most_likely():
    assert (frequencies(Sampling(top_k=2)) > 0).tolist() == [True, True, False, False]
    assert (frequencies(Sampling(top_k=0)) > 0).all()


@pytest.mark.parametrize(("mass", "kept"), [(0.0, 1), (0.5, 1), (0.7, 2), (0.9, 3), (1.0, 4)])
def test_top_p_keeps_the_fewest_that_reach_the_mass(mass, kept):
    assert int((frequencies(Sampling(top_p=mass)) > 0).sum()) == kept


def test_temperature_zero_is_greedy():
    assert GREEDY.choose(LOGITS).tolist() == [0]


ADDED = [[20, 21], [22], [23, 24, 25, 26]]


def played(model, turns, *, sampling=GREEDY, stop_ids=(1, 30, 31, 32, 33), copies=2, limit=9):
    """Sequences of three prompts and two copies over several turns, fewer rows each turn; and their completions."""
    decoder = Decoder(model, stop_ids=stop_ids, pad_id=0, sampling=sampling, keep=True)
    rows = list(range(len(PROMPTS) * copies))
    sequences = {row: list(PROMPTS[row // copies]) for row in rows}
    # Some rows may write less than others.
    limits = [limit - row % 3 for row in rows]
    completions = decoder.start(PROMPTS, copies, limits)
    history = []
    for turn in range(turns):
        for row, completion in zip(rows, completions, strict=True):
            history.append((list(sequences[row]), completion, limits[row]))
            sequences[row] += completion.tokens
        if turn == turns - 1:
            break
        rows = [row for row in rows if row != turn]
        added = [ADDED[(row + turn) % 3] for row in rows]
        for row, tokens in zip(rows, added, strict=True):
            sequences[row] += tokens
        completions = decoder.go_on(rows, added, [limits[row] for row in rows])
    return history


@pytest.mark.parametrize("keeps", [True, False])
def test_every_turn_is_what_the_model_writes_after_the_whole_sequence(tiny, keeps, monkeypatch):
    if not keeps:  # a cache that cannot be taken apart
        monkeypatch.setattr(generation, "_is_plain", lambda cache: False)
    history = played(tiny, 4)
    assert len(history) == 6 + 5 + 4 + 3
    for before, completion, limit in history:
        alone = generate(
            tiny, [before], copies=1, max_new_tokens=limit, stop_ids=(1, 30, 31, 32, 33), pad_id=0, sampling=GREEDY
        )
        assert completion.tokens == alone[0].tokens
        assert len(completion.tokens) <= limit
    assert len({len(completion.tokens) for _, completion, _ in history}) > 2


def test_log_probs_of_later_turns_are_those_of_the_model(tiny):
    torch.manual_seed(4)
    for before, completion, _ in played(tiny, 3, sampling=Sampling(0.7)):
        logits = tiny(torch.tensor([before + completion.tokens])).logits[0, len(before) - 1 : -1] / 0.7
        table = logits.log_softmax(-1)
        expected = table.gather(1, torch.tensor(completion.tokens).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(torch.tensor(completion.log_probs), expected, atol=1e-4, rtol=1e-4)
        entropies = -(table.exp() * table).sum(-1)
        torch.testing.assert_close(torch.tensor(completion.entropies), entropies, atol=1e-4, rtol=1e-4)


def test_going_on_computes_the_new_tokens_alone(tiny):
    columns = []
    forward = tiny.forward

    def counted(*args, input_ids, **kwargs):
        columns.append(input_ids.size(1))
        return forward(*args, input_ids=input_ids, **kwargs)

    counted.__signature__ = inspect.signature(forward)
    tiny.forward = counted
    decoder = Decoder(tiny, stop_ids=(), pad_id=0, sampling=GREEDY, keep=True)
    decoder.start([PROMPTS[1]], 1, [3])
    decoder.go_on([0], [[20, 21]], [2])
    assert columns == [5, 1, 1, 3, 1]  # the prompt, two tokens, the third with what was added, one token
