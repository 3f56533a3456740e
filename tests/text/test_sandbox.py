"""Hostile templates end within their budget, touch nothing, and honest ones do not notice."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from llmrs_cli.text.sandbox import MAX_SOURCE, BudgetExceeded, MeteredEnvironment


def render(source: str, **values: Any) -> str:
    environment = MeteredEnvironment({}, seconds=0.3)
    return environment.render(environment.prepare(source), values)


DOUBLING = "{% set x = 'ab' %}" + "{% set x = %s %}" * 40 + "{{ x | length }}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        DOUBLING.replace("%s", "x ~ x"),
        DOUBLING.replace("%s", "x + x"),
        DOUBLING.replace("%s", "[x, x] | join"),
        DOUBLING.replace("%s", "''.join([x, x])"),
        "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
        "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% set x = 'ab' %}" + "{% set x = twice(x) %}" * 40,
        "{% set x = [1] %}" + "{% set x = [x, x] %}" * 40 + "{{ x }}",
        "{% set x = {} %}" + "{% set x = {'a': x, 'b': x} %}" * 40 + "{{ x | tojson }}",
        "{% set x = 'a' * 1000000 %}{{ x | replace('a', x) }}",
        "{% set x = 'a' * 1000000 %}{{ x.replace('a', x) }}",
        "{% set x = '\n' * 1000000 %}{{ x | indent(99, blank=true) }}",
        "{% set x = 'a' * 4000000 %}{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
        "{% set x = 'a' * 4000000 %}{% for i in range(99999) %}{% set y = x | upper %}{% endfor %}",
        "{% set x = 'a' * 10000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(9999) if false %}{% endfor %}{% endfor %}",
        "{% set y = range(99999) | list %}{% for i in range(99999) if i == 0.5 or y == [i] or -1 in y %}{% endfor %}",
        "{% set y = range(99999) | list %}{{ range(99999) | select('in', y) | select('in', y) | list | length }}",
        "{% set y = range(99999) | list %}" + "{% if -1 in y %}{% endif %}" * 3000,
        "{% set x = 'a' * 1000000 %}{{ (('-' * 100000) | safe).join(x | list) }}",
        "{% set x = '-' * 1000000 %}{{ (x | safe).join(range(99999) | list) }}",
        "{% set x = 'a' * 100000 %}{{ ('%(x)s' * 10000) % {'x': x} }}",
        "x" * (MAX_SOURCE + 1),
    ],
)
def test_a_template_that_grows_without_end_is_stopped(source: str) -> None:
    with pytest.raises(BudgetExceeded):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%.1000000000f' % 1 }}",
        "{{ '%(a)-1000000000s' % {'a': 1} }}",
        "{{ 10 ** 10000000 }}",
        "{{ {'a': 1} | tojson(indent=1000000000) }}",
        "{{ 'a' | indent(1000000000) }}",
        "{% set ns = namespace() %}{{ [ns] }}",
        "{{ namespace }}",
    ],
)
def test_what_has_no_use_in_a_template_is_refused(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ x.__init__.__globals__ }}",
        "{{ x['__class__'].mro() }}",
        "{{ x | attr('__class__') | attr('mro') }}",
        "{{ ('' | attr('format'))('{0.__class__}') }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ (1).to_bytes(1000000000) }}",
        "{{ y.append(1) }}",
        "{{ x.update({'a': 1}) }}",
        "{{ range.__self__.__loader__ }}",
        "{{ namespace.__init__.__globals__['sys'] }}",
    ],
)
def test_attributes_that_could_reach_anything_are_out_of_reach(source: str) -> None:
    values: dict[str, Any] = {"x": {"k": 1}, "y": [1]}
    with pytest.raises((SecurityError, TemplateError)):
        render(source, **values)
    assert values == {"x": {"k": 1}, "y": [1]}


@pytest.mark.parametrize("name", ["lipsum", "cycler", "joiner", "dict", "open", "__builtins__"])
def test_globals_with_no_use_are_not_there(name: str) -> None:
    assert render(f"{{{{ {name} is defined }}}}") == "False"


@pytest.mark.parametrize(
    "source", ["{% include 'x' %}", "{% import 'x' as y %}", "{% extends '/etc/passwd' %}"]
)
def test_no_other_template_can_be_loaded(source: str) -> None:
    with pytest.raises((TemplateError, TypeError)):
        render(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ [1, 2, 3] | join(', ') }} {{ ['a', 1] }} {{ {'a': 1} }}", "1, 2, 3 ['a', 1] {'a': 1}"),
        ("{{ 'abc'[1:] }}{{ 'abc'[:-1] }}{{ 'abc'[::-1] }}{{ x[1:] | length }}", "bcabcba1"),
        ("{% for a, b in {'k': 2} | items %}{{ a ~ b ~ loop.index }}{% endfor %}", "k21"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% generation %}a{{ x[0] }}{% endgeneration %}b", "a1b"),
        ("{{ '%s|%02d|%.2f' % ('a', 3, 1.5) }}", "a|03|1.50"),
        ("{{ '100%% of %(what)s since 1995' % {'what': 2024} }}", "100% of 2024 since 1995"),
        ("{% set ns = namespace(n=0) %}{% for i in x %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ 'a-b'.split('-')[-1] }}{{ ' x '.strip() }}{{ 'aa'.replace('a', 'b', 1) }}", "bxba"),
        ("{{ x | map('string') | join('+') }}{{ [{'a': 1}] | map(attribute='a') | list }}", "1+2[1]"),
        ("{{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }}", "1-2"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ nothing }}{{ nothing | default('d') }}{{ none }}", "dNone"),
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
    ],
)
def test_honest_templates_render_as_ever(source: str, text: str) -> None:
    assert render(source, x=[1, 2]) == text


@pytest.mark.parametrize(
    ("loops", "characters", "stopped"),
    [(100, 0, False), (400, 0, True), (400, 200_000, False), (8_000, 10**6, True)],
)
def test_a_longer_conversation_may_take_longer_but_not_for_ever(
    loops: int, characters: int, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    monkeypatch.setattr("llmrs_cli.text.sandbox.time.thread_time", lambda: 0.0005 * next(ticks))
    environment = MeteredEnvironment({})
    template = environment.prepare("{% for i in range(n) %}{% endfor %}")
    with pytest.raises(BudgetExceeded) if stopped else nullcontext():
        environment.render(template, {"n": loops, "x": "c" * characters})


def test_a_long_conversation_stays_within_the_budget() -> None:
    source = (
        "{% set ns = namespace(kept=[]) %}"
        "{% for m in x %}{% set ns.kept = ns.kept + [m] %}{{ '<' + m.role + '>' + m.content | trim + '\n' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "c" * 200}] * 2000
    environment = MeteredEnvironment({})
    assert len(environment.render(environment.prepare(source), {"x": messages})) == 2000 * 207


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        ({"b": 1, "a": 'a < b & "c" é\u2028'}, "", '{"b": 1, "a": "a < b & \\"c\\" é\u2028"}'),
        ({"a": [1, None, True]}, "indent=2", '{\n  "a": [\n    1,\n    null,\n    true\n  ]\n}'),
        ({"b": 1, "a": 2}, "sort_keys=true, separators=(',', ':')", '{"a":2,"b":1}'),
    ],
)
def test_tojson_is_plain_json(value: object, options: str, text: str) -> None:
    assert render(f"{{{{ x | tojson({options}) }}}}", x=value) == text
