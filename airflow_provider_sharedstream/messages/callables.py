"""A user's callable by its dotted path."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from airflow_provider_sharedstream.stream.errors import InvalidArgument


@lru_cache(maxsize=1024)
def resolve(dotted_path: str, argument: str) -> Callable[..., Any]:
    """Import the callable at ``dotted_path`` (``package.module.function`` or ``package.module.Class.method``).

    :param argument: the argument's name, for the error.
    :raises InvalidArgument: it can't be imported, or can't be called.
    """
    if not isinstance(dotted_path, str) or "." not in dotted_path:
        raise InvalidArgument(
            f"{argument}: expected the dotted path of a callable (package.module.name), got {dotted_path!r}"
        )
    found = _import(dotted_path, argument)
    if not callable(found):
        raise InvalidArgument(f"{argument}: {dotted_path} is {type(found).__name__}, which can't be called")
    return found  # type: ignore[no-any-return]


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling ``function`` gives something to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _import(dotted_path: str, argument: str) -> Any:
    names = dotted_path.split(".")
    for end in range(len(names) - 1, 0, -1):
        module_name = ".".join(names[:end])
        try:
            found: Any = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
                continue  # part of the path is a class
            raise InvalidArgument(f"{argument}: importing {module_name} failed: {error}") from error
        except Exception as error:
            raise InvalidArgument(
                f"{argument}: importing {module_name} failed: {type(error).__name__}: {error}"
            ) from error
        within = names[end:]
        for name in within:
            if not hasattr(found, name):
                kind = "function " if len(within) == 1 else ""
                raise InvalidArgument(f"{argument}: module {module_name!r} has no {kind}{'.'.join(within)!r}")
            found = getattr(found, name)
        return found
    raise InvalidArgument(f"{argument}: there is no module {'.'.join(names[:-1])!r} to import {names[-1]!r} from")
