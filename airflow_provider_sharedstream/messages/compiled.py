"""JMESPath's commonest shapes as plain functions: paths, comparisons, and, or, not.

JMESPath's interpreter walks the expression for every message, which costs several times what decoding does, for each
watcher. What filters are made of is compiled here to nested functions, five times as fast; whatever isn't (functions,
projections) is still the library's. That both mean the same is tested against the library.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from jmespath.visitor import TreeInterpreter

from airflow_provider_sharedstream.stream.message import Message, utc_text

Evaluate = Callable[[Any], Any]
Node = Mapping[str, Any]

_interpret: Callable[[Any, Any], Any] = TreeInterpreter().visit
_ORDER: Mapping[str, Callable[[Any, Any], Any]] = {
    "lt": operator.lt,
    "gt": operator.gt,
    "lte": operator.le,
    "gte": operator.ge,
}


def compile_for_message(node: Node) -> Evaluate:
    """Return a function of a :class:`Message` that evaluates ``node`` on it."""
    kind, children = node["type"], node["children"]
    if kind == "field":
        return _published_at if node["value"] == "published_at" else operator.attrgetter(node["value"])
    if kind in ("subexpression", "index_expression", "pipe"):
        return _chain([compile_for_message(children[0]), *map(_compile, children[1:])])
    return _common(node, compile_for_message) or (lambda message: _interpret(node, as_mapping(message)))


def as_mapping(message: Message) -> dict[str, Any]:
    """Return ``message`` as an expression sees it."""
    return {
        "body": message.body,
        "headers": message.headers,
        "key": message.key,
        "attributes": message.attributes,
        "id": message.id,
        "published_at": _published_at(message),
        "delivery_count": message.delivery_count,
    }


def is_true(value: Any) -> bool:
    """Return whether ``value`` is true as JMESPath has it."""
    return not (value is None or value is False or value == "" or value == [] or value == {})


def _published_at(message: Message) -> str | None:
    return None if message.published_at is None else utc_text(message.published_at)


def _compile(node: Node) -> Evaluate:
    """Return a function of a JSON value that evaluates ``node`` on it."""
    kind, children = node["type"], node["children"]
    if kind == "field":
        return _field(node["value"])
    if kind == "index":
        return _index(node["value"])
    if kind in ("subexpression", "index_expression", "pipe"):
        return _chain([_compile(child) for child in children])
    return _common(node, _compile) or (lambda value: _interpret(node, value))


def _common(node: Node, compile_child: Callable[[Node], Evaluate]) -> Evaluate | None:
    """Compile what doesn't depend on whether it is evaluated on a message or on a part of one."""
    kind, children = node["type"], node["children"]
    if kind == "literal":
        return _literal(node["value"])
    if kind == "comparator":
        return _comparison(node["value"], compile_child(children[0]), compile_child(children[1]), children[1])
    if kind in ("and_expression", "or_expression"):
        operands = [compile_child(operand) for operand in _operands(node)]
        return _any_of(operands) if kind == "or_expression" else _all_of(operands)
    if kind == "not_expression":
        return _not(compile_child(children[0]))
    return None


def _operands(node: Node) -> list[Node]:
    """Return a, b, c of ``(a || b) || c``: a list of a thousand values makes no tower of a thousand calls."""
    found = []
    kind = node["type"]
    while node["type"] == kind:
        node, right = node["children"]
        found.append(right)
    return [node, *reversed(found)]


def _literal(constant: Any) -> Evaluate:
    return lambda _: constant


def _field(name: str) -> Evaluate:
    def field(value: Any) -> Any:
        try:
            return value.get(name)
        except AttributeError:  # not an object
            return None

    return field


def _index(position: int) -> Evaluate:
    def index(value: Any) -> Any:
        try:
            return value[position] if isinstance(value, list) else None
        except IndexError:
            return None

    return index


def _chain(steps: list[Evaluate]) -> Evaluate:
    if len(steps) == 2:
        first, second = steps
        return lambda value: second(first(value))
    if len(steps) > 2:
        return _chain([_chain(steps[:-1]), steps[-1]])
    return steps[0]


def _comparison(sign: str, left: Evaluate, right: Evaluate, right_node: Node) -> Evaluate:
    if sign not in ("eq", "ne"):
        return _ordering(_ORDER[sign], left, right)
    if right_node["type"] == "literal" and isinstance(right_node["value"], str):
        text = right_node["value"]
        return (lambda value: left(value) == text) if sign == "eq" else (lambda value: left(value) != text)
    if sign == "eq":
        return lambda value: _equal(left(value), right(value))
    return lambda value: not _equal(left(value), right(value))


def _ordering(compare: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate) -> Evaluate:
    def ordering(value: Any) -> Any:
        one, other = left(value), right(value)
        return compare(one, other) if _has_order(one) and _has_order(other) else None

    return ordering


def _all_of(operands: list[Evaluate]) -> Evaluate:
    *others, last = operands

    def all_of(value: Any) -> Any:
        for operand in others:
            result = operand(value)
            if result is not True and not is_true(result):
                return result
        return last(value)

    return all_of


def _any_of(operands: list[Evaluate]) -> Evaluate:
    *others, last = operands

    def any_of(value: Any) -> Any:
        for operand in others:
            result = operand(value)
            if result is not False and is_true(result):
                return result
        return last(value)

    return any_of


def _not(inner: Evaluate) -> Evaluate:
    return lambda value: not is_true(inner(value))


def _equal(one: Any, other: Any) -> bool:
    # To Python 1 is True.
    return (type(one) is bool) is (type(other) is bool) and bool(one == other)


def _has_order(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and type(value) is not bool
