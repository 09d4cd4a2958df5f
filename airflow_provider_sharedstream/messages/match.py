"""Which messages are a watcher's own."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jmespath
from jmespath import exceptions
from jmespath.functions import Functions

from airflow_provider_sharedstream.messages.compiled import Evaluate, Node, compile_for_message, is_true
from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.stream.message import Message

FIELDS = ("body", "headers", "key", "attributes", "id", "published_at", "delivery_count")
"""What an expression sees at its top."""

OPERATORS = {
    "and": "and is written &&",
    "or": "or is written ||",
    "in": "in is written contains(list, value), and for a dict of paths as a list of values",
    "is": "is is written ==",
}
CONSTANTS = {"true": "true", "True": "true", "false": "false", "False": "false", "null": "null", "None": "null"}
FUNCTIONS = {"len": "length", "str": "to_string", "int": "to_number", "float": "to_number"}
"""What people write who come from Python or SQL, and what it is in JMESPath."""

MatchError = Callable[[Message, Exception], None]
"""Called with a message on which the expression can't be evaluated, and why."""

_LEFT_SIDE_SEES_MESSAGE = frozenset(
    {"subexpression", "index_expression", "pipe", "projection", "value_projection", "filter_projection", "flatten"}
)
_NAME = re.compile(r'"((?:[^"\\]|\\.)+)"|([^."\[\]]+)')
_INDEX = re.compile(r"\[(-?\d+)\]")


class Matcher:
    """Says whether a message is a watcher's own.

    :param expression: a JMESPath expression over ``{body, headers, key, attributes, id, published_at,
        delivery_count}``; a message matches where the result is true as JMESPath has it: anything but null, false,
        and an empty text, list or object (0 is true). Or a dict of paths to the value expected there, or to a list of
        values one of which is expected: ``{"body.region": "eu", "headers.type": ["order", "refund"]}``; all of them
        must hold. None: every message.
    :param on_error: told of each message on which the expression can't be evaluated; such a message doesn't match.
    :raises InvalidArgument: the expression doesn't compile, or can't ever match; the text says where.
    """

    __slots__ = ("_evaluate", "expression", "failures", "on_error")

    def __init__(self, expression: str | Mapping[str, Any] | None = None, on_error: MatchError | None = None) -> None:
        self.expression = expression
        self.failures = 0
        """Messages on which the expression could not be evaluated."""
        self.on_error = on_error
        text = "" if expression is None else _expression_of(expression)
        self._evaluate = compile_expression(text) if text else None

    def matches(self, message: Message) -> bool:
        """Return whether ``message`` is the watcher's own. Never raises."""
        evaluate = self._evaluate
        if evaluate is None:
            return True
        try:
            result = evaluate(message)
        except Exception as error:  # whatever JMESPath's functions raise on the odd shapes that queues carry
            self.failures += 1
            if self.on_error is not None:
                self.on_error(message, error)
            return False
        return result is True or (result is not False and is_true(result))


def compile_expression(text: str) -> Evaluate:
    """Compile a JMESPath expression over a message.

    :raises InvalidArgument: with the position of what is wrong.
    """
    try:
        tree = jmespath.compile(text).parsed
        _check(tree, text)
        return compile_for_message(tree)
    except exceptions.JMESPathError as error:
        raise InvalidArgument(f"match: {complaint(text, error)}") from None
    except RecursionError:
        raise InvalidArgument(f"match: nested too deeply to be compiled: {text[:80]!r}") from None


def complaint(text: str, error: Exception) -> str:
    """Return what is wrong with ``text``, and where, of which JMESPath has said ``error``."""
    position = getattr(error, "lex_position", None)
    if position is None:
        position = getattr(error, "lexer_position", None)
    if position is None or position < 0:
        position = len(text)
    said = getattr(error, "message", None)
    said = said if isinstance(said, str) and said else str(error).split("\n")[0]
    hint = _meant(error)
    return f"not a JMESPath expression at position {position}: {hint or said}\n  {text}\n  {' ' * position}^"


def _meant(error: Exception) -> str | None:
    """What to write in place of what Python or SQL would have, where that is what JMESPath stumbled on."""
    kind, value = getattr(error, "token_type", None), getattr(error, "token_value", None)
    if kind == "NUMBER":
        return f"a number is written `{value}`, in backticks"
    if kind == "LITERAL" and isinstance(value, str) and value.isidentifier():
        return f"a part is named by a dot: body.{value} for body['{value}']"
    return OPERATORS.get(value) if kind == "UNQUOTED_IDENTIFIER" and isinstance(value, str) else None


def _check(tree: Node, text: str) -> None:
    """Find what JMESPath takes, and what can't be meant."""
    for name in _names_in_message(tree):
        if name not in FIELDS:
            hint = f" (did you mean body.{name}?)" if name.isidentifier() else ""
            if name in CONSTANTS:
                hint = f" ({name} is written `{CONSTANTS[name]}`, in backticks)"
            elif f'"{name}"' in text:
                hint = f" (text is written '{name}'; double quotes mean a name)"
            raise InvalidArgument(
                f"match: {name!r} in {text!r} isn't part of a message: expected one of {', '.join(FIELDS)}{hint}"
            )
    for node in _nodes(tree):
        if node["type"] == "function_expression":
            _check_call(node, text)
        elif node["type"] == "subexpression" and node["children"][0]["type"] == "not_expression":
            # `!body.draft` is `(!body).draft`, which is never true.
            raise InvalidArgument(
                f"match: ! binds closer than the dot: expected !(body.name) for !body.name in {text!r}"
            )


def _check_call(node: Node, text: str) -> None:
    # JMESPath itself says so only when a message comes.
    name = node["value"]
    where = f"(position {text.find(name)} of {text!r})"
    known = Functions.FUNCTION_TABLE.get(name)
    if known is None:
        close = FUNCTIONS.get(name) or next(iter(difflib.get_close_matches(name, Functions.FUNCTION_TABLE, n=1)), None)
        hint = f", did you mean {close}()?" if close else ""
        raise InvalidArgument(f"match: there is no function {name}(){hint} {where}")
    wanted = known["signature"]
    variadic = bool(wanted) and wanted[-1].get("variadic", False)
    given = len(node["children"])
    if given < len(wanted) or (given > len(wanted) and not variadic):
        takes = f"{len(wanted)}{' or more' if variadic else ''}"
        raise InvalidArgument(f"match: {name}() takes {takes} arguments, got {given} {where}")


def _nodes(tree: Node) -> Iterator[Node]:
    # Without recursion: a list of a thousand values is a thousand levels.
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(child for child in node["children"] if isinstance(child, dict))


def _names_in_message(tree: Node) -> Iterator[str]:
    """The names that are looked up in the message itself, not in a part of it."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        kind, children = node["type"], node["children"]
        if kind == "field":
            yield node["value"]
        elif kind in _LEFT_SIDE_SEES_MESSAGE:
            waiting.append(children[0])
        elif kind != "expref":  # which is evaluated on the members of a list
            waiting.extend(child for child in reversed(children) if isinstance(child, dict))


def _expression_of(given: Any) -> str:
    if isinstance(given, str):
        if not given.strip():
            raise InvalidArgument(f"match={given!r}: expected a JMESPath expression, or None for all messages")
        return given
    if isinstance(given, Mapping):
        return " && ".join(_condition(path, value) for path, value in given.items())
    raise InvalidArgument(
        f"match: expected a JMESPath expression or a dict of paths to values, got {type(given).__name__}"
    )


def _condition(path: Any, value: Any) -> str:
    where = _path(path)
    if isinstance(value, (list, tuple, set, frozenset)):
        if not value:
            raise InvalidArgument(f"match: expected at least one value for {path!r}; with none, nothing could match")
        return "(" + " || ".join(f"{where} == {_literal(path, item)}" for item in value) + ")"
    return f"{where} == {_literal(path, value)}"


def _literal(path: Any, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"match: expected a number that is JSON for {path!r}, got the number {value}")
    if value is None or isinstance(value, (str, bool, int, float)):
        return "`" + json.dumps(value).replace("`", "\\`") + "`"
    raise InvalidArgument(f"match: expected text, a number, a boolean or None for {path!r}, got {type(value).__name__}")


def _path(path: Any) -> str:
    """``headers.content-type`` as JMESPath: names that it would have quoted are quoted for the user."""
    if not isinstance(path, str):
        raise InvalidArgument(f"match: expected the path of a value (body.region), got {path!r}")
    first = _NAME.match(path)
    if first is not None and (first.group(1) or first.group(2)) not in FIELDS:
        raise InvalidArgument(
            f"match={{{path!r}: ...}}: a path begins with one of {', '.join(FIELDS)}; did you mean 'body.{path}'?"
        )
    parts: list[str] = []
    position = 0
    while True:
        name = _NAME.match(path, position)
        if name is None:
            raise InvalidArgument(f"match: expected a name at position {position} of the path {path!r}")
        parts.append(f'"{name.group(1)}"' if name.group(1) else json.dumps(name.group(2)))
        position = name.end()
        while index := _INDEX.match(path, position):
            parts[-1] += index.group(0)
            position = index.end()
        if position == len(path):
            return ".".join(parts)
        if path[position] != ".":
            raise InvalidArgument(f"match: expected a dot at position {position} of the path {path!r}")
        position += 1
