"""JSONPath as scripts for Kubernetes tools write it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodus.cli.jsonpath import JsonPathError, find, render

DOCUMENT = {
    "metadata": {"name": "x", "labels": {"nodus.dev/a": "b"}},
    "status": {
        "phase": "Running",
        "outputs": [{"name": "a"}, {"name": "b/c"}],
        "count": 3,
        "final": True,
        "none": None,
    },
}


PODS = {
    "items": [
        {"name": "a", "phase": "Ready", "size": 1, "tags": {"app.io/x": "1"}},
        {"name": "b", "phase": "Failed", "size": 30, "inner": {"name": "deep"}},
        {"name": "c", "phase": "Ready"},
    ]
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{.status.phase}", "Running"),
        (".status.phase", "Running"),
        ("{$.status.phase}", "Running"),
        ("{.status.outputs[*].name}", "a b/c"),
        ("{.status.outputs[1].name}", "b/c"),
        ("{.status.outputs[-1].name}", "b/c"),
        ("{.metadata.labels['nodus.dev/a']}", "b"),
        ("{.status.count}", "3"),
        ("{.status.final}", "true"),
        ("{.status.missing.deeper}", ""),
        ("{.status.outputs[9].name}", ""),
        ('{.metadata.name}{"\\t"}{.status.phase}{"\\n"}', "x\tRunning\n"),
        ("name={.metadata.name}", "name=x"),
        ("{.metadata.labels}", '{"nodus.dev/a":"b"}'),
        ("{.}", json.dumps(DOCUMENT, separators=(",", ":"))),
        (r"{.metadata.labels.nodus\.dev/a}", "b"),
    ],
)
def test_jsonpath_finds(template: str, expected: str) -> None:
    assert render(template, DOCUMENT) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('{range .items[*]}{.name}={.phase}{"\\n"}{end}', "a=Ready\nb=Failed\nc=Ready\n"),
        ("{range .items[0:2]}[{range .inner.*}{@}{end}]{end}", "[][deep]"),
        ('{.items[?(@.phase=="Ready")].name}', "a c"),
        ("{.items[?(@.phase!='Ready')].name}", "b"),
        ("{.items[?(@.size>=2)].name}", "b"),
        ("{.items[?(@.size > 'x')].name}", ""),
        ("{.items[?(@.inner)].name}", "b"),
        ("{.items[0,2].name}", "a c"),
        ("{.items[1:].name}", "b c"),
        ("{.items[::2].name}", "a c"),
        ("{.items[-2:].name}", "b c"),
        ("{.items[0]['name','phase']}", "a Ready"),
        ("{..name}", "a b deep c"),
        ("{..[0].name}", "a"),
        ('{"{"}{.items[0].name}{"}"}', "{a}"),
        (r"{.items[0].tags.app\.io/x}", "1"),
        ("{range .items[*]}{$.items[0].name}{end}", "aaa"),
        ("{range .items[7:]}x{end}", ""),
    ],
)
def test_loops_filters_and_slices(template: str, expected: str) -> None:
    assert render(template, PODS) == expected


@pytest.mark.parametrize(
    "path",
    ["{.a[}", "{.a[1:2:0]}", "{.a[x]}", "{.a[?(@.b~1)]}", "{.a[?(]}", "{.a[?(@.b==c)]}", "{.a b}", "{.[}", "{.,}"],
)
def test_what_is_not_understood_is_refused(path: str) -> None:
    with pytest.raises(JsonPathError, match="JSONPath"):
        find(path, {"a": [1]})


@pytest.mark.parametrize("template", ["{range .a}", "{end}", "{range .a}{end}{end}", "{end}{range .a}"])
def test_loops_need_their_end(template: str) -> None:
    with pytest.raises(JsonPathError, match="needs its"):
        render(template, DOCUMENT)


@given(st.text(alphabet="{}[]().*?@$,:\"'\\ =<!ab01-", max_size=30))
def test_any_text_is_rendered_or_refused(template: str) -> None:
    try:
        assert isinstance(render(template, PODS), str)
    except JsonPathError as error:
        assert "JSONPath" in str(error)
