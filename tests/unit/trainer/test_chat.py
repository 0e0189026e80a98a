"""What a chat template puts between a reply and the next one, on the templates of models that people train."""

import string
from pathlib import Path

import pytest

from nodus.core.errors import BadRequest
from nodus.testing.models import TOOLS_TEMPLATE, character_tokenizer
from nodus.trainer.attempt import Task
from nodus.trainer.chat import Turns, render

pytestmark = pytest.mark.timeout(240)  # the first of them imports torch and transformers

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "one"}}},
    },
}
USER = [{"role": "user", "content": "GO"}]
RESULT = [{"role": "tool", "name": "add", "content": "7"}]


def tokenizer_of(template, *, end="<|im_end|>", special=()):
    """A character tokenizer with a model's template, as TRL carries it, and tokens of that model."""
    import trl

    tokenizer = character_tokenizer(vocabulary=string.printable)
    tokenizer.add_special_tokens({"eos_token": end, "bos_token": "<s>"})
    tokenizer.add_tokens(list(special), special_tokens=True)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    return tokenizer


CHATML = "\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"
IN_TAGS = "<tool_response>\n7\n</tool_response>"
LLAMA = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"


@pytest.mark.parametrize(
    ("template", "end", "user", "tool"),
    [
        ("qwen2_5", "<|im_end|>", CHATML.format("GO"), CHATML.format(IN_TAGS)),
        ("qwen3", "<|im_end|>", CHATML.format("GO") + NO_THOUGHT, CHATML.format(IN_TAGS) + NO_THOUGHT),
        ("llama3_1", "<|eot_id|>", LLAMA.format("user", "GO"), LLAMA.format("ipython", '"7"')),
        (
            "gemma3",
            "<end_of_turn>",
            "\n<start_of_turn>user\nGO<end_of_turn>\n<start_of_turn>model\n",
            "can't render messages of the role tool",
        ),
        # These leave a tool's result out without a word.
        ("phi3", "<|end|>", "\n<|user|>\nGO<|end|>\n<|assistant|>\n", "leaves out messages of the role tool"),
        (
            "gemma4",
            "<turn|>",
            "\n<|turn>user\nGO<turn|>\n<|turn>model\n",
            "leaves out messages of the role tool",
        ),
    ],
)
def test_templates_of_real_models(template, end, user, tool):
    tokenizer = tokenizer_of(template, end=end)
    turns = Turns(tokenizer, [tokenizer.eos_token_id])
    # A reply that has its stop token, and one that was cut before it.
    assert tokenizer.decode(turns.between(USER, tokenizer.eos_token_id)) == user
    assert tokenizer.decode(turns.between(USER, 40)) == end + user
    if "role tool" in tool:
        with pytest.raises(BadRequest, match=tool):
            turns.between(RESULT, 40)
    else:
        assert tokenizer.decode(turns.between(RESULT, tokenizer.eos_token_id)) == tool


def test_another_stop_token_than_the_templates_stays_and_the_templates_is_said(tokenizer):
    other = tokenizer.convert_tokens_to_ids("<s>")
    turns = Turns(tokenizer, [tokenizer.eos_token_id, other])
    assert tokenizer.decode(turns.between(USER, other)) == "<end><u>GO<end><a>"


def test_messages_may_be_several_or_none(tokenizer):
    turns = Turns(tokenizer, [tokenizer.eos_token_id])
    assert tokenizer.decode(turns.between([*USER, *USER], tokenizer.eos_token_id)) == "<u>GO<end><u>GO<end><a>"
    assert tokenizer.decode(turns.between([], tokenizer.eos_token_id)) == "<a>"


def test_message_that_looks_like_a_stop_token_is_not_taken_for_the_replys(tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}|{% endfor %}"
    turns = Turns(tokenizer, [tokenizer.eos_token_id])
    said = turns.between([{"role": "user", "content": "a<end>b"}], tokenizer.eos_token_id)
    assert tokenizer.decode(said).endswith("a<end>b<unk>")


@pytest.mark.parametrize("special", [True, False])
def test_reply_keeps_its_tool_calls_and_loses_other_special_tokens(special):
    marks = ("<tool_call>", "</tool_call>")
    tokenizer = tokenizer_of("qwen2_5", special=("<|im_start|>", *(marks if special else ())))
    tokenizer.add_tokens([] if special else list(marks))
    turns = Turns(tokenizer, [tokenizer.eos_token_id])
    text = 'so: <tool_call>{"name": "add"}</tool_call>'
    ids = tokenizer("<|im_start|>" + text + "<|im_end|>", add_special_tokens=False)["input_ids"]
    assert turns.text(ids) == text
    assert turns.text(ids[:-1]) == text
    assert turns.text([tokenizer.eos_token_id]) == ""


def test_tools_stand_in_the_prompt(tokenizer):
    tokenizer.chat_template = TOOLS_TEMPLATE
    task = Task("t", "hi", {}, (TOOL,))
    text = tokenizer.decode(render(tokenizer, [task, Task("u", "hi", {})], 1000)["t"])
    assert text.startswith("<s>") and "name" in text and text.endswith("<u>hi<end><a>")
    assert tokenizer.decode(render(tokenizer, [task, Task("u", "hi", {})], 1000)["u"]) == "<u>hi<end><a>"


@pytest.mark.parametrize("template", [None, "llama3", "gemma3"])
def test_template_without_a_place_for_tools_is_refused(template):
    tokenizer = tokenizer_of(template or "llama3")
    if template is None:
        tokenizer.chat_template = None
    with pytest.raises(BadRequest, match="task t offers tools, and the model's") as caught:
        render(tokenizer, [Task("u", "hi", {}), Task("t", "hi", {}, (TOOL,))], 100)
    assert "Qwen" in caught.value.fix


def test_episodes_need_a_chat_template(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(BadRequest, match="episodes of several turns need a chat template"):
        Turns(tokenizer, [1])
