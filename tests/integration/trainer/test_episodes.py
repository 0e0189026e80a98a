"""Episodes of several turns: what is learned from in them, what ends them, and whole runs of them."""

import copy

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from nodus.core.errors import BadRequest, Invalid
from nodus.testing.models import tiny_llama
from nodus.trainer.generation import Decoder
from nodus.trainer.grpo_config import lora_arguments
from tests.integration.trainer.conftest import HELD_OUT, TRAIN, letters
from tests.integration.trainer.test_loss import gradients, shake
from tests.integration.trainer.test_runs import EVALUATED, adapter_digest, finish, kill_after_checkpoint, without_times

pytestmark = pytest.mark.timeout(240)

GAME = {"maxTurns": 3, "maxCompletionLength": 8}


def hint(task_id, turns):
    """The environment of these tests: an episode ends with a reply that has a vowel, others get a hint."""
    return None if any(c in "aeiou" for c in turns[-1]) else f"no, {task_id} {len(turns)}"


def by_turns(task_id, turns):
    """The reward of these tests: of all that the model said."""
    return letters(task_id, "".join(turns))


def recorded(monkeypatch):
    """Everything that decoders write and are given: lists of (row, tokens, sampled by the model)."""
    log = []
    start, go_on = Decoder.start, Decoder.go_on

    def recording_start(self, prompts, copies, limits):
        completions = start(self, prompts, copies, limits)
        log.extend((row, completion.tokens, True) for row, completion in enumerate(completions))
        return completions

    def recording_go_on(self, rows, added, limits):
        log.extend((row, list(tokens), False) for row, tokens in zip(rows, added, strict=True))
        completions = go_on(self, rows, added, limits)
        log.extend((row, completion.tokens, True) for row, completion in zip(rows, completions, strict=True))
        return completions

    monkeypatch.setattr(Decoder, "start", recording_start)
    monkeypatch.setattr(Decoder, "go_on", recording_go_on)
    return log


def sampled(made):
    """A prepared run with a shaken adapter, and its first generation batch."""
    made.trainer.model.train()
    shake(made.trainer.model)
    made.trainer.current_gradient_accumulation_steps = 1
    rows = [made.trainer.train_dataset[i] for i in (0, 0, 0, 0, 1, 1, 1, 1)]
    return made.trainer._generate_and_score_completions(rows)


def test_mask_is_one_at_every_token_the_model_sampled_and_at_no_other(prepare, monkeypatch):
    log = recorded(monkeypatch)
    made = prepare(by_turns, answer=hint, **GAME)
    batch = sampled(made)
    tokenizer = made.session.tokenizer
    for row in range(8):
        pieces = [(tokens, mine) for at, tokens, mine in log if at == row]
        expected = [(token, int(mine)) for tokens, mine in pieces for token in tokens]
        length = int(batch["completion_mask"][row].sum())
        ids, mask = batch["completion_ids"][row, :length].tolist(), batch["tool_mask"][row, :length].tolist()
        assert list(zip(ids, mask, strict=True)) == expected
        # What the environment's tokens say, by hand: the rest of the reply's message, the hint, the next reply's start.
        task = f"t{row // 4}"
        for turn, (reply, said) in enumerate(zip(pieces[::2], pieces[1::2], strict=False), 1):
            end = "" if reply[0][-1] == tokenizer.eos_token_id else "<end>"
            assert tokenizer.decode(said[0]) == f"{end}<u>no, {task} {turn}<end><a>"
    masked = (batch["completion_mask"] * (1 - batch["tool_mask"])).sum()
    assert masked > 50
    assert batch["num_items_in_batch"] == (batch["completion_mask"] * batch["tool_mask"]).sum()


def test_log_probs_are_those_of_the_models_own_tokens(prepare):
    made = prepare(by_turns, answer=hint, **GAME)
    batch = sampled(made)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    columns = batch["completion_ids"].size(1)
    made.trainer.model.eval()
    with torch.no_grad():
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        logits = made.trainer.model(input_ids=ids, attention_mask=attention, position_ids=positions).logits
    table = logits[:, -columns - 1 : -1].log_softmax(-1)
    own = batch["completion_mask"] * batch["tool_mask"]
    expected = table.gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2) * own
    torch.testing.assert_close(batch["sampling_per_token_logps"], expected, atol=1e-4, rtol=1e-4)
    entropy = -(table.exp() * table).sum(-1)
    mean = float((entropy * own).sum() / own.sum())
    assert made.trainer.sampling_entropy == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("beta", [0, 0.1])
def test_loss_gradients_and_figures_equal_the_dense_computation(prepare, tiny_dir, beta):
    made = prepare(by_turns, answer=hint, beta=beta, **GAME)
    batch = sampled(made)
    plain = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_dir),
        args=copy.copy(made.trainer.args),
        reward_funcs=lambda **_: [],
        train_dataset=made.trainer.train_dataset,
        processing_class=made.session.tokenizer,
        peft_config=LoraConfig(**lora_arguments(made.session.spec.parameters)),
    )
    shake(plain.model)
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
    # The same of what is measured: entropy of the loss, KL of one group, tokens.
    entropies = [trainer._metrics["train"]["entropy"][-1] for trainer in (made.trainer, plain)]
    assert entropies[0] == pytest.approx(entropies[1], rel=1e-4)
    own = batch["completion_mask"] * batch["tool_mask"]
    assert made.trainer.figures.completion_tokens == int(own.sum())
    if beta == 0:
        with torch.no_grad():
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)[:4]
            attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)[:4]
            dense = (plain.model, ids, attention, batch["completion_ids"].size(1))
            policy = plain._get_per_token_logps_and_entropies(*dense)[0]
            with plain.model.disable_adapter():
                difference = plain._get_per_token_logps_and_entropies(*dense)[0] - policy
        divergence = (difference.exp() - difference - 1) * own[:4]
        assert made.trainer.figures.kl == pytest.approx(float(divergence.sum() / own[:4].sum()), rel=1e-3)


def test_environments_tokens_change_nothing_that_is_scored_but_through_attention(prepare):
    """Masked tokens have no gradient of their own: with another token in a masked place after all, nothing changes."""
    made = prepare(by_turns, answer=hint, **GAME)
    batch = sampled(made)
    own = batch["completion_mask"] * batch["tool_mask"]
    weights = own * torch.arange(own.numel()).view_as(own)
    trainer = made.trainer
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    trainer.model.eval()
    with trainer._scoring(batch), torch.no_grad():
        packed = trainer._get_per_token_logps_and_entropies(trainer.model, ids, attention, own.size(1), 8, True)
    dense = super(type(trainer), trainer)._get_per_token_logps_and_entropies
    with torch.no_grad():
        expected = dense(trainer.model, ids, attention, own.size(1), 8, True)
    assert not (packed[0] * (1 - own)).any()
    assert not (packed[1] * (1 - own)).any()
    for found, wanted in zip(packed[:2], expected[:2], strict=True):
        torch.testing.assert_close((found * weights).sum(), (wanted * weights).sum(), atol=1e-2, rtol=1e-5)


def test_failed_environment_leaves_its_episode_out_of_baseline_and_loss(prepare):
    def answer(task_id, turns):
        if task_id == "t1":
            raise RuntimeError("no dictionary")
        return hint(task_id, turns)

    made = prepare(by_turns, answer=answer, **GAME)
    made.server._stop_when_failing = lambda: None
    batch = sampled(made)
    lengths = batch["completion_mask"].sum(dim=1)
    assert (lengths > 0).tolist() == [True] * 4 + [False] * 4
    assert batch["advantages"][4:].tolist() == [0.0] * 4
    assert batch["num_items_in_batch"] == (batch["completion_mask"] * batch["tool_mask"])[:4].sum()
    verdicts = [(task, v["verdict"]) for (_, task, _), v in made.server.phase("Training").items()]
    assert {task for task, verdict in verdicts if verdict == "InfrastructureFailure"} == {"t1"}
    assert len(verdicts) == 8
    assert made.session.rewards.failures == 4
    assert made.trainer.episodes["environmentFailures"] == 4


def test_caps_end_episodes_which_are_graded_as_they_stand(prepare):
    endless = {"answer": lambda task_id, turns: "more please"}
    made = prepare(by_turns, **endless, **GAME)
    sampled(made)
    assert {len(v["completion"]) for v in made.server.phase("Training").values()} == {3}
    assert made.trainer.episodes["maxTurnsShare"] == 1.0
    assert made.trainer.episodes["turns"] == 3
    # The last reply is not answered: nothing would come after it.
    assert {turns for *_, turns in made.server.steps} == {1, 2}

    made = prepare(by_turns, **endless, **{**GAME, "maxTurns": 31, "maxEpisodeTokens": 40})
    batch = sampled(made)
    assert int(batch["completion_mask"].sum(dim=1).max()) <= 40
    assert made.trainer.episodes["maxEpisodeTokensShare"] == 1.0
    # A row never ends with what the environment said.
    for row in range(8):
        assert batch["tool_mask"][row, int(batch["completion_mask"][row].sum()) - 1] == 1


def test_model_without_room_for_the_episodes_is_refused_by_path(prepare):
    with pytest.raises(Invalid) as caught:
        prepare(by_turns, answer=hint, maxEpisodeTokens=510, **GAME)
    assert [cause.field for cause in caught.value.causes] == ["spec.parameters.maxEpisodeTokens"]
    assert "the model has 512 positions" in caught.value.causes[0].message


def test_step_that_samples_twice_numbers_its_episodes_apart(prepare):
    made = prepare(by_turns, answer=hint, **GAME)
    sampled(made)
    sampled(made)
    assert len(made.server.phase("Training")) == 16
    assert {sample for _, _, sample in made.server.phase("Training")} == set(range(8))


def test_killed_run_of_episodes_resumes_to_the_adapter_of_an_unbroken_one(runs):
    given = {"steps": 6, "saveSteps": 2, "lora": {"r": 4, "dropout": 0.2}, **GAME}
    unbroken = runs("unbroken", given, **EVALUATED)
    with unbroken.server(TRAIN, HELD_OUT, by_turns, hint) as server:
        finish(unbroken)
    expected = without_times(server.events_of("Metrics"))
    assert all(1 < event["turns"] <= 3 and event["environmentTokens"] > 0 for event in expected)
    results = unbroken.output("results.json")
    assert results["baseline"]["turns"] > 1
    assert results["evaluation"].keys() >= {"turns", "environmentTokens", "maxTurnsShare", "maxEpisodeTokensShare"}
    shown = results["samples"][0]["after"]
    assert shown["turns"] == sum(message["role"] == "assistant" for message in shown["messages"])
    assert shown["messages"][-1] == {"role": "assistant", "content": shown["completion"]}

    broken = runs("broken", given, **EVALUATED)
    with broken.server(TRAIN, HELD_OUT, by_turns, hint) as server:
        kill_after_checkpoint(broken, server, "att1", 2)
        finish(broken, "att2")
    assert adapter_digest(broken) == adapter_digest(unbroken)
    resumed_from = broken.output("results.json")["training"]["resumedFromStep"]
    assert without_times(server.events_of("Metrics", "att2")) == expected[resumed_from:]


def test_one_turn_is_the_run_without_the_parameter(runs):
    digests = []
    for name, parameters in (("unset", {}), ("one", {"maxTurns": 1})):
        run = runs(name, {"steps": 2, **parameters})
        with run.server(TRAIN, HELD_OUT, letters, hint) as server:
            finish(run)
        assert server.steps == []
        assert all(isinstance(v["completion"], str) for v in server.phase("Training").values())
        digests.append((adapter_digest(run), without_times(server.events_of("Metrics"))))
    assert digests[0] == digests[1]


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
WITH_TOOLS = [{**row, "tools": [ADD]} for row in TRAIN]


def test_tools_stand_in_the_prompt_and_results_are_read_as_messages_of_the_tool(prepare, tmp_path):
    def run_tool(task_id, turns):
        return [{"role": "tool", "name": "add", "content": "7"}] if len(turns) < 2 else None

    model_dir = tiny_llama(tmp_path / "tools", tools=True)
    made = prepare(
        by_turns, answer=run_tool, tasks=(WITH_TOOLS, HELD_OUT), model_dir=model_dir, maxTurns=4, maxCompletionLength=8
    )
    batch = sampled(made)
    tokenizer = made.session.tokenizer
    prompt = tokenizer.decode(made.trainer._prompt_ids["t0"])
    assert "function" in prompt and "add" in prompt
    assert "function" not in tokenizer.decode(made.trainer._prompt_ids["h0"])
    own = batch["tool_mask"][0] * batch["completion_mask"][0]
    said = [token for token, mine in zip(batch["completion_ids"][0].tolist(), own.tolist(), strict=True) if not mine]
    assert "7<end><a>" in tokenizer.decode(said)
    assert made.trainer.episodes["turns"] == 2


def test_template_without_tools_is_refused_for_tasks_that_offer_some(prepare):
    with pytest.raises(BadRequest) as caught:
        prepare(by_turns, tasks=(WITH_TOOLS, HELD_OUT), maxTurns=2)
    assert "the model's chat template has no place for them" in caught.value.message
    assert "whose chat template has tools" in caught.value.fix


def test_evaluate_mode_plays_the_episodes_greedily(runs):
    parameters = {"evaluationBatchSize": 3, **GAME}
    runtime = {"name": "nodus/evaluate", "digest": "sha256:runtime"}
    run = runs(parameters={}, task="Evaluate", mode="Evaluate", runtime=runtime)
    run.params["parameters"] = parameters

    def answer(task_id, turns):
        if task_id == "h1":
            raise RuntimeError("no dictionary")
        return hint(task_id, turns)

    with run.server([], HELD_OUT, by_turns, answer) as server:
        finish(run)
    evaluation = run.output("results.json")["evaluation"]
    assert evaluation["tasks"] == len(HELD_OUT)
    assert evaluation["errors"] == evaluation["environmentFailures"] == 1
    assert [key for key, v in server.phase("Evaluation").items() if v["outcome"] == "Error"] == [(0, "h1", 0)]
