"""The arguments of the triggers: defaults, what is allowed, and who they are for.

Constructors only store, since Airflow's triggerer dies of one that raises. What is wrong, or missing, is reported when
the Dag is parsed.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from jsonschema import Draft202012Validator
from typing_extensions import TypedDict

from airflow_provider_sharedstream.messages.limits import MAX_PAYLOAD_BYTES

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
TEXT_OR_NONE: Schema = {"type": ["string", "null"], "minLength": 1}
FLAG: Schema = {"type": "boolean"}
SECONDS: Schema = {"type": "number", "minimum": 0}

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()
"""The default of an argument that names the source."""


class Argument(NamedTuple):
    """One argument of a trigger.

    :param default: its default, or :data:`REQUIRED`.
    :param schema: the JSON schema of what is allowed; errors say its ``description``, where it has one.
    :param scope: ``source``: names or reaches the source; ``stream``: how the stream runs; ``filter``: what one watcher
        wants. Source and stream arguments make the shared-stream key: watchers that agree in them share a connection.
    :param example: what the error shows when it is missing. For one that is required.
    """

    default: Any
    schema: Schema
    scope: Literal["source", "stream", "filter"] = "source"
    example: Any = None


class CommonArguments(TypedDict, total=False):
    """Arguments that every trigger takes.

    What one watcher wants:

    - ``match``: which messages it wants: a JMESPath expression over ``{body, headers, key, attributes}``, or a dict
      such as ``{"body.region": "eu", "headers.type": ["order", "refund"]}``. Default: all.
    - ``apply_function``: dotted path of a function, sync or async, called with each :class:`Message` that matches. It
      returns None to skip it, a replacement for the body to emit it, or raises ``RejectMessage(reason)``. Default:
      none.
    - ``apply_timeout_seconds``: how long it may take for one message. Default: 30; at most 150, since Airflow gives
      a watcher 300 s for a batch.
    - ``decode``: ``auto`` (default), ``json``, ``text``, ``bytes``, ``schema_registry``, or the dotted path of a
      callable that takes the bytes and the headers and returns the body.
    - ``unwrap``: names of envelopes to take off, outermost first, such as ``["sns", "s3"]``. Default: none.
    - ``max_payload_bytes``: how large one event may be, as JSON: all triggering events travel with every task start.
      Default: 65,536; None: no limit.
    - ``on_oversize``: what happens to a message that is larger by itself: ``split`` (default) gives it an event of its
      own, ``omit`` leaves its body out, ``reject`` rejects it.
    - ``on_error``: what happens to a message that a decoder asked for by name can't decode, or on which
      ``apply_function`` raises or runs out of time: ``reject`` (default), ``skip``, ``release``.
    - ``dedupe_window_seconds``: for how long a message whose event is stored makes no second one when it comes again.
      Default: None, it makes one; at most 86,400. It is kept in memory while the watcher runs.
    - ``dedupe_key``: a JMESPath expression; messages in which it has the same value are the same. Default: the id
      tells.
    - ``dedupe_durable``: remember it with the stored events, through restarts and on every triggerer. Not on Pub/Sub,
      where nothing tells then what somebody put back. Default: False, in memory.
    - ``max_age_seconds``: how old a message may be. Default: None, any age.
    - ``on_expired``: what happens to an older one: ``reject`` (default), or ``accept``: it is counted, and makes no
      event.

    How the stream runs; watchers that differ in one of these do not share a stream:

    - ``on_reject``: what happens to a rejected message: ``dead_letter`` (default), ``accept``, ``release``.
    - ``reject_quorum``: ``any`` (default): one watcher's rejection suffices; ``all``: only if nobody accepted it.
    - ``on_unmatched``: what happens to a message that no watcher matches: ``accept`` (default), ``dead_letter``,
      ``release``.
    - ``max_deliveries``: dead-letter a message that was delivered so often and not accepted. Default: 10; None: never.
    - ``release_delay_seconds``: wait before a released message comes again; doubles each time, up to 900. Default: 5.
    - ``batch_size``: most messages in one event. Default: 100; at most 10,000.
    - ``batch_window_seconds``: longest wait for an event to fill. Default: 0.5.
    - ``max_in_flight``: most messages received and not settled. Default: 1,000.
    """

    match: str | dict[str, Any] | None
    apply_function: str | None
    apply_timeout_seconds: float
    decode: str
    unwrap: str | list[str]
    max_payload_bytes: int | None
    on_oversize: Literal["split", "omit", "reject"]
    on_error: Literal["reject", "skip", "release"]
    dedupe_window_seconds: float | None
    dedupe_key: str | None
    dedupe_durable: bool
    max_age_seconds: float | None
    on_expired: Literal["reject", "accept"]
    on_reject: Literal["dead_letter", "accept", "release"]
    reject_quorum: Literal["any", "all"]
    on_unmatched: Literal["accept", "dead_letter", "release", "leave"]
    max_deliveries: int | None
    release_delay_seconds: float
    batch_size: int
    batch_window_seconds: float
    max_in_flight: int


DOTTED_PATH: Schema = {
    "type": ["string", "null"],
    "pattern": r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
    "description": "a dotted path such as 'package.module.function'",
}

ENVELOPES: Schema = {
    "type": ["string", "array"],
    "items": {"type": "string", "description": "such names"},
    "description": "an envelope's name such as 'sns'",
}
DECODER: Schema = {**TEXT, "description": "'auto', 'json', 'text', 'bytes', 'schema_registry', or a dotted path"}
EXPRESSION: Schema = {"type": ["string", "object", "null"], "description": "a JMESPath expression"}

COMMON: Mapping[str, Argument] = {
    "match": Argument(None, EXPRESSION, "filter"),
    "apply_function": Argument(None, DOTTED_PATH, "filter"),
    "apply_timeout_seconds": Argument(30.0, {"type": "number", "exclusiveMinimum": 0, "maximum": 150}, "filter"),
    "decode": Argument("auto", DECODER, "filter"),
    "unwrap": Argument([], ENVELOPES, "filter"),
    "max_payload_bytes": Argument(MAX_PAYLOAD_BYTES, {"type": ["integer", "null"], "minimum": 1024}, "filter"),
    "on_oversize": Argument("split", {"enum": ["split", "omit", "reject"]}, "filter"),
    "on_error": Argument("reject", {"enum": ["reject", "skip", "release"]}, "filter"),
    "dedupe_window_seconds": Argument(
        None, {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 86_400}, "filter"
    ),
    "dedupe_key": Argument(None, TEXT_OR_NONE, "filter"),
    "dedupe_durable": Argument(False, FLAG, "filter"),
    "max_age_seconds": Argument(None, {"type": ["number", "null"], "exclusiveMinimum": 0}, "filter"),
    "on_expired": Argument("reject", {"enum": ["reject", "accept"]}, "filter"),
    "on_reject": Argument("dead_letter", {"enum": ["dead_letter", "accept", "release"]}, "stream"),
    "reject_quorum": Argument("any", {"enum": ["any", "all"]}, "stream"),
    "on_unmatched": Argument("accept", {"enum": ["accept", "dead_letter", "release"]}, "stream"),
    "max_deliveries": Argument(10, {"type": ["integer", "null"], "minimum": 1}, "stream"),
    "release_delay_seconds": Argument(5.0, {"type": "number", "minimum": 0, "maximum": 900}, "stream"),
    "batch_size": Argument(100, {"type": "integer", "minimum": 1, "maximum": 10_000}, "stream"),
    "batch_window_seconds": Argument(0.5, {"type": "number", "minimum": 0, "maximum": 60}, "stream"),
    "max_in_flight": Argument(1000, {"type": "integer", "minimum": 1, "maximum": 100_000}, "stream"),
}


def mistakes(allowed: Mapping[str, Argument], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the arguments ``given``: name, what came, what is expected."""
    for name, value in given.items():
        argument = allowed.get(name)
        if argument is None:
            yield f"{name}={_shown(value)}: there is no such argument; {_hint(name, allowed)}"
        elif value is REQUIRED:
            yield f"{name} is missing: expected {_words(argument.schema)}, such as {name}={argument.example!r}"
        elif not Draft202012Validator(argument.schema).is_valid(value):
            yield f"{name}={_shown(value)}: expected {_words(argument.schema)}"


def _hint(name: str, allowed: Mapping[str, Argument]) -> str:
    """Say which arguments somebody may have meant who wrote ``name``, or else which there are."""
    near = difflib.get_close_matches(name, allowed, cutoff=0.8)
    near = near or [one for one in allowed if f"_{name}_" in f"_{one}_" or f"_{one}_" in f"_{name}_"]
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    own = [one for one in allowed if one not in COMMON]
    return f"there are {', '.join(own)}, and those of every trigger: {', '.join(COMMON)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _words(schema: Schema) -> str:
    """Say what ``schema`` allows."""
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    *others, last = (words(schema) for kind, words in WORDS.items() if kind in kinds)
    return f"{', '.join(others)}, or {last}" if others else last


def _text(schema: Schema) -> str:
    return str(schema.get("description", "a text that isn't empty" if schema.get("minLength") else "a text"))


def _number(kind: str, schema: Schema) -> str:
    least, above, most = (schema.get(bound) for bound in ("minimum", "exclusiveMinimum", "maximum"))
    if above is not None:
        return f"{kind} above {above:,}" + (f" and up to {most:,}" if most is not None else "")
    if least is not None and most is not None:
        return f"{kind} from {least:,} to {most:,}"
    return f"{kind} that is at least {least:,}"


def _list(schema: Schema) -> str:
    items = schema.get("items")
    if items is None:
        return "a list"
    some = "one or more " if schema.get("minItems") else ""
    empty = " that aren't empty" if items.get("minLength") else ""
    return f"a list of {some}{items.get('description', 'texts')}{empty}"


WORDS: Mapping[str, Callable[[Schema], str]] = {
    "null": lambda _: "None",
    "boolean": lambda _: "True or False",
    "integer": functools.partial(_number, "a whole number"),
    "number": functools.partial(_number, "a number"),
    "string": _text,
    "array": _list,
    "object": lambda _: "a dict",
}
"""How each type of JSON is called in Python or in English; in the order in which they are named."""
