"""How references are written, and what is said of those that are not."""

from __future__ import annotations

import pytest

from nodus.server.training.references import (
    BadReference,
    HubModel,
    LibraryModel,
    library_entry,
    parse_environment,
    parse_model,
    parse_object,
)

COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"


@pytest.mark.parametrize(
    ("uri", "model"),
    [
        ("hf://Qwen/Qwen3-0.6B", HubModel("Qwen/Qwen3-0.6B")),
        (f"hf://Qwen/Qwen3-0.6B@{COMMIT}", HubModel("Qwen/Qwen3-0.6B", COMMIT)),
        ("hf://gpt2", HubModel("gpt2")),
        ("library://smollm2-135m-instruct", LibraryModel("smollm2-135m-instruct")),
    ],
)
def test_model_uri_is_read_and_written_back(uri: str, model: object) -> None:
    assert parse_model(uri) == model
    assert str(parse_model(uri)) == uri


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("Qwen/Qwen3-0.6B", "did you mean hf://Qwen/Qwen3-0.6B?"),
        ("https://huggingface.co/Qwen/Qwen3", "write hf://OWNER/NAME"),
        ("hf://", "is not a repository"),
        ("hf://a/b/c", "is not a repository"),
        ("hf://../etc", "is not a repository"),
        ("hf://Qwen/..", "is not a repository"),
        ("hf://Qwen/Qwen3@main", "leave @main out"),
        ("hf://Qwen/Qwen3@", "is not a full commit"),
        (f"hf://Qwen/Qwen3@{COMMIT[:12]}", "is not a full commit"),
        (f"hf://Qwen/Qwen3@{COMMIT.upper()}", "is not a full commit"),
        ("library://", "write library://NAME"),
        ("library://SmolLM2", "in lower case"),
        ("file:///etc/passwd", "is not a model URI"),
    ],
)
def test_bad_model_uri_says_how_to_write_it(uri: str, words: str) -> None:
    with pytest.raises(BadReference) as refused:
        parse_model(uri)
    assert words in str(refused.value)


def test_library_answers_its_name_and_the_unpinned_repository_only() -> None:
    entry = library_entry(LibraryModel("smollm2-135m-instruct"))
    assert entry is not None
    assert library_entry(HubModel("HuggingFaceTB/SmolLM2-135M-Instruct")) == entry
    assert library_entry(HubModel("HuggingFaceTB/SmolLM2-135M-Instruct", COMMIT)) is None
    assert library_entry(HubModel("HuggingFaceTB/SmolLM2-135M")) is None


@pytest.mark.parametrize("text", ["arithmetic", "arithmetic@", "arithmetic@latest", "nodus/arithmetic@2", "@1.0.0"])
def test_environment_without_a_whole_version_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        parse_environment(text)


def test_references_name_the_own_project_or_the_catalog() -> None:
    own, catalog = parse_object("grpo"), parse_object("nodus/grpo")
    assert (own.in_project("team"), catalog.in_project("team")) == ("team", "nodus")
    assert str(parse_environment("nodus/arithmetic@2.0.0")) == "nodus/arithmetic@2.0.0"
    with pytest.raises(BadReference, match="another project"):
        parse_object("other/grpo")
