"""Loading a model directory and rendering prompts for it."""

import pytest
import torch

from nodus.core.errors import BadRequest, Invalid
from nodus.testing.models import tiny_llama
from nodus.trainer.attempt import Task
from nodus.trainer.chat import render
from nodus.trainer.grpo_config import Device
from nodus.trainer.models import load_model, load_tokenizer, stop_ids
from nodus.trainer.parameters import GRPO_LORA, Values

pytestmark = pytest.mark.timeout(240)  # the first of them imports torch and transformers


def values(**given):
    return Values(given, GRPO_LORA)


def text_of(tokenizer, task, max_tokens=100):
    return tokenizer.decode(render(tokenizer, [task], max_tokens)[task.id])


def test_string_prompt_becomes_one_user_message(tokenizer):
    assert text_of(tokenizer, Task("t", "hi", {})) == "<u>hi<end><a>"


def test_chat_messages_keep_their_roles(tokenizer):
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    assert text_of(tokenizer, Task("t", messages, {})) == "<s>be<end><u>hi<end><a>"


def test_long_prompt_keeps_its_end(tokenizer):
    assert text_of(tokenizer, Task("t", "abcdef", {}), max_tokens=4) == "ef<end><a>"


def test_prompt_is_plain_text_without_a_chat_template(tmp_path):
    tokenizer = load_tokenizer(tiny_llama(tmp_path, chat=False))
    assert text_of(tokenizer, Task("t", "hi", {})) == "hi"
    with pytest.raises(BadRequest, match="no chat template"):
        render(tokenizer, [Task("t", [{"role": "user", "content": "hi"}], {})], 100)


def test_empty_prompt_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="task t: the prompt has no tokens"):
        render(load_tokenizer(tiny_llama(tmp_path, chat=False)), [Task("t", "", {})], 100)


def test_stop_tokens_are_the_tokenizers_and_the_generation_configs(tiny, tokenizer):
    tiny.generation_config.eos_token_id = [9, tokenizer.eos_token_id]
    assert stop_ids(tiny, tokenizer) == [tokenizer.eos_token_id, 9]


@pytest.mark.parametrize(("method", "dtype"), [("LoRA", torch.bfloat16), ("Full", torch.float32)])
def test_frozen_base_is_kept_in_the_precision_that_computes(tiny_dir, method, dtype):
    model = load_model(tiny_dir, values(method=method, precision="bf16"), Device(), training=True)
    assert model.dtype == dtype


def test_attention_kernel_asked_for_is_in_force(tiny_dir):
    model = load_model(tiny_dir, values(attention="eager"), Device(), training=False)
    assert model.config._attn_implementation == "eager"


def test_kernel_that_is_not_installed_is_refused_by_path(tiny_dir):
    with pytest.raises(Invalid) as caught:
        load_model(tiny_dir, values(attention="flash_attention_2"), Device(), training=False)
    assert [cause.field for cause in caught.value.causes] == ["spec.parameters.attention"]


def test_directory_without_a_model_is_named(tmp_path):
    with pytest.raises(BadRequest, match=str(tmp_path)):
        load_model(tmp_path, values(), Device(), training=False)
    with pytest.raises(BadRequest, match=str(tmp_path)):
        load_tokenizer(tmp_path)
