"""Templates of `-o jsonpath`: what kubectl prints for the same ones."""

from __future__ import annotations

import pytest

from trimtab.errors import UsageError
from trimtab.ui.form import ListForm, Output, list_form
from trimtab.ui.jsonpath import filled

VALUE = {"items": [{"name": "a", "gpus": 8, "labels": {"a.b/c": "d"}}, {"name": "b", "on": True}]}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{.items[*].name}", "a b"),
        ("{.items[0].gpus} GPUs", "8 GPUs"),
        ("{.items[-1].on}", "true"),
        ("{$.items[0]['labels']['a.b/c']}", "d"),
        ("{.items[1].gpus}{.nothing.at.all}", ""),
        ("{.items[0].labels}", '{"a.b/c": "d"}'),
        ('{range .items[*]}{.name}{"\\t"}{.gpus}{"\\n"}{end}.', "a\t8\nb\t\n."),
        ("plain", "plain"),
    ],
)
def test_a_template_is_filled(template: str, said: str) -> None:
    assert filled(template, VALUE) == said


@pytest.mark.parametrize("template", ["{.items[*", "{.a}}", "{range .items[*]}x", "{end}", "{.a..b}", '{"x}', "{a}"])
def test_what_is_not_understood_is_told(template: str) -> None:
    with pytest.raises(UsageError, match="-o jsonpath: "):
        filled(template, VALUE)


def test_forms_by_name() -> None:
    assert list_form("wide") == ListForm(Output.TABLE, wide=True)
    assert list_form("jsonpath={.a=b}").path == "{.a=b}"
    for wrong in ("", "jsonpath", "json=x", "wider"):
        with pytest.raises(ValueError, match="is none of table, wide, name"):
            list_form(wrong)
