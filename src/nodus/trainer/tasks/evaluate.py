"""Mode Evaluate: grade a model on an Environment's held-out tasks."""

from __future__ import annotations

from nodus.core.errors import Cause, Invalid
from nodus.trainer import outputs
from nodus.trainer.attempt import AttemptClient
from nodus.trainer.chat import render
from nodus.trainer.episodes import player
from nodus.trainer.evaluation import Evaluator
from nodus.trainer.grpo_config import check, prompt_length
from nodus.trainer.models import detect_device, load_model, load_tokenizer, quiet
from nodus.trainer.run import Run
from nodus.trainer.scoring import model_attention


def run(spec: Run, attempt: AttemptClient) -> None:
    """Evaluate once and write results.json, provenance.json and manifest.json.

    Raises:
        Invalid: When a parameter is one this machine can't do, or the run has no held-out tasks.
    """
    if not spec.is_main:
        return
    quiet()
    device = detect_device(1)
    check(spec.parameters, device)
    _, tasks = attempt.tasks()
    if not tasks:
        cause = Cause("spec.environment.heldOutTasks", "FieldValueRequired", "an evaluation needs held-out tasks")
        raise Invalid("this run has nothing to evaluate", causes=[cause], fix="set spec.environment.heldOutTasks")
    tokenizer = load_tokenizer(spec.model_dir)
    prompts = render(tokenizer, tasks, prompt_length(spec.parameters))
    model = load_model(spec.model_dir, spec.parameters, device, training=False)
    plays = player(spec.parameters, model, tokenizer, prompts, tasks, attempt)
    outputs.clear(spec.output_dir)
    attempt.stage("Evaluating")
    scores = Evaluator(model, tokenizer, prompts, tasks, spec.parameters, attempt, plays).run("Evaluation", 0)
    outputs.write_results(spec, baseline=None, final=scores, tasks=tasks, training=None)
    outputs.write_provenance(spec, device, tokenizer.chat_template, attention=model_attention(model))
    outputs.write_manifest(spec.output_dir)
