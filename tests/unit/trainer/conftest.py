"""A tiny random model for the tests of this folder."""

import pytest

from nodus.testing.models import tiny_llama


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny(tiny_dir):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_dir)


@pytest.fixture
def tokenizer(tiny_dir):
    from nodus.trainer.models import load_tokenizer

    return load_tokenizer(tiny_dir)
