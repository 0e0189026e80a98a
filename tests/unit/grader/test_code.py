"""What a reward finds in a reply before it has it run."""

from __future__ import annotations

import pytest

from nodus.grader.code import python_of


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("def f(): pass", "def f(): pass"),
        ("Sure:\n```python\ndef f(): pass\n```\nThat's it.", "def f(): pass\n"),
        ("```py\nfirst = 1\n```\nor\n```\nsecond = 2\n```", "second = 2\n"),
        ("```python\nx = 1\n```\n```bash\nls\n```", "x = 1\n"),
        ("```python\ncut = ", "cut = "),
        ("```python\n\n```", "```python\n\n```"),
        ("", ""),
    ],
)
def test_code_of_a_chat_models_reply_is_its_last_python_block(reply: str, code: str) -> None:
    assert python_of(reply) == code
