"""Go templates, custom columns and the order of a list: what `get` makes of JSON on this side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodus.cli.columns import custom_columns, sort_key
from nodus.cli.formats import OBJECT_FORMATS, check_format, print_object
from nodus.cli.gofunctions import TemplateError
from nodus.cli.gotemplate import render

LIST: dict[str, Any] = {
    "kind": "List",
    "items": [
        {"metadata": {"name": "a", "labels": {"x": "1"}}, "n": 3, "f": 1.5, "t": True},
        {"metadata": {"name": "b"}},
    ],
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('{{range .items}}{{.metadata.name}}{{"\\n"}}{{end}}', "a\nb\n"),
        ("{{len .items}} {{(index .items 0).metadata.name}}", "2 a"),
        ("{{range $i, $e := .items}}{{$i}}={{$e.metadata.name}} {{end}}", "0=a 1=b "),
        (
            "{{with (index .items 0)}}{{.n}} {{.f}} {{.t}} {{.metadata}}{{end}}",
            "3 1.5 true map[labels:map[x:1] name:a]",
        ),
        ('{{range .items}}{{if .n}}n{{else if eq .metadata.name "b"}}bee{{else}}no{{end}},{{end}}', "n,bee,"),
        ('a {{- "b" -}}  c', "abc"),
        ('{{printf "%-5s|%5d|%q|%.2f|%03d|%%" "ab" 42 "x" 1.5 7}}', 'ab   |   42|"x"|1.50|007|%'),
        ('{{printf "%d" "x"}}{{printf "%s"}}{{printf "a" 1}}', "%!d(x)%!s(MISSING)a%!(EXTRA 1)"),
        ('{{.items | len | printf "%03d"}}', "002"),
        ('{{$x := "q"}}{{$x}}{{$x = "r"}}{{$x}}{{/* a comment */}}', "qr"),
        ("{{range .nope}}x{{else}}none{{end}}{{.nope.deep}}", "none<no value>"),
        ('{{not (eq 1 2)}} {{and 1 0}} {{or 0 "z"}} {{lt 1 2}}', "true 0 z true"),
        ("{{range $k, $v := (index .items 0).metadata.labels}}{{$k}}-{{$v}}{{end}}", "x-1"),
        ("{{$all := .}}{{range .items}}{{len $all.items}}{{end}}", "22"),
        ('{{"}}"}}{{`{{`}}{{println 1 2}}', "}}{{1 2\n"),
        ('{{base64decode "aGk="}} {{exists . "items" 0 "n"}} {{slice "abc" 1}}', "hi true bc"),
    ],
)
def test_templates(template: str, expected: str) -> None:
    assert render(template, LIST) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{foo}}",
        "{{if}}",
        "{{end}}",
        "{{else}}",
        "{{range .items}}",
        "{{ .items",
        "{{.items.x}}",
        "{{1 2}}",
        "{{.|}}",
        "{{(}}",
        "{{printf}}",
        "{{index .items 5}}",
        "{{$no}}",
        "{{len 1}}",
        "{{range 1.5}}{{end}}",
        "{{base64decode 1}}",
        "{{:= 1}}",
        "{{template 1}}",
        "{{lt 1 .}}",
        "x" * 30_000,
    ],
)
def test_templates_that_are_refused(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template, LIST)


@given(
    st.lists(
        st.sampled_from(
            [
                "{{",
                "}}",
                "-",
                " ",
                "range",
                "if",
                "end",
                "else",
                "with",
                ".",
                ".items",
                "$",
                "$a",
                ":=",
                "|",
                "(",
                ")",
                '"x"',
                "`",
                "1",
                "len",
                "index",
                "printf",
                ",",
                "\n",
            ]
        ),
        max_size=16,
    )
)
def test_any_template_is_rendered_or_refused(pieces: list[str]) -> None:
    try:
        assert isinstance(render("".join(pieces), LIST), str)
    except TemplateError:
        pass


def test_custom_columns_print_headers_as_written_and_none_for_what_is_missing() -> None:
    lines = custom_columns("Name:.metadata.name,X:.metadata.labels.x,ALL:.items", LIST["items"])
    assert [line.split() for line in lines] == [["Name", "X", "ALL"], ["a", "1", "<none>"], ["b", "<none>", "<none>"]]
    assert custom_columns("N:.n\n", LIST["items"], headers=False) == ["3", "<none>"]
    assert custom_columns("A B\n.n .f\n", LIST["items"][:1])[1].split() == ["3", "1.5"]
    for wrong in ("NAME", "NAME:", ":.a", "N:.a[", ""):
        with pytest.raises(click.UsageError):
            custom_columns(wrong, LIST["items"])


def test_order_puts_numbers_first_and_what_is_missing_last() -> None:
    items: list[dict[str, Any]] = [{"v": "b"}, {}, {"v": "10.5"}, {"v": 9}, {"v": "a"}, {"v": True}, {"v": "nan"}]
    ordered = sorted(items, key=lambda item: sort_key(".v", item))
    assert [item.get("v") for item in ordered] == [9, "10.5", "a", "b", "nan", True, None]
    with pytest.raises(click.UsageError, match="--sort-by"):
        sort_key(".v[", {})


def test_a_template_can_stand_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "template"
    path.write_text("{{len .items}}")
    output = check_format(f"go-template-file={path}", OBJECT_FORMATS)
    assert output == "go-template={{len .items}}"
    print_object(LIST, output)
    print_object(LIST, "go-template={{len .items}}\n")
    assert capsys.readouterr().out == "2\n2\n"
    for wrong in (f"jsonpath-file={tmp_path / 'none'}", "jsonpath-file", "yaml=x", "go-template=", "custom-columns"):
        with pytest.raises(click.UsageError):
            check_format(wrong, OBJECT_FORMATS)
