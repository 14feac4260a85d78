"""Checks request bodies against the types of the providers' own SDKs, strictly: an unknown key is an error.

Each `check_*` returns nothing or raises AssertionError with the path and the reason. The SDKs are imported by the
first check that needs them, because that takes seconds.
"""

from __future__ import annotations

import json
import re
import types as python_types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import ReadOnly, get_type_hints, is_typeddict

Check = Callable[[Any, str], str | None]
"""Takes a value and its path, and says what is wrong."""


def check_anthropic(body: dict[str, Any]) -> None:
    """The arguments of `client.messages.create`."""
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

    _check(MessageCreateParamsNonStreaming, body)
    _check_says_something(body, "system", "messages")


def check_openai_chat(body: dict[str, Any]) -> None:
    """The arguments of `client.chat.completions.create`."""
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    _check(CompletionCreateParamsNonStreaming, body)
    _check_says_something(body, "messages")


def check_openai_responses(body: dict[str, Any]) -> None:
    """The arguments of `client.responses.create`."""
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    _check(ResponseCreateParamsNonStreaming, body)
    _check_says_something(body, "input")


def check_gemini(body: dict[str, Any]) -> None:
    """The arguments of `client.models.generate_content`."""
    from google.genai import types

    json.dumps(body)
    _only(body, required={"model", "contents"}, optional={"config"})
    config = body.get("config", {})
    _validate(types.GenerateContentConfig, config, "config")
    _check_contents(body["contents"], "contents")
    _check_system_instruction(config)


def check_gemini_cache(arguments: dict[str, Any]) -> None:
    """The arguments of `client.caches.create`."""
    from google.genai import types

    json.dumps(arguments)
    _only(arguments, required={"model", "config"})
    config = arguments["config"]
    _validate(types.CreateCachedContentConfig, config, "config")
    assert re.fullmatch(r"\d+s", config["ttl"]), f"config.ttl: {config['ttl']!r} is not a number of seconds"
    if "contents" in config:
        _check_contents(config["contents"], "config.contents")
    _check_system_instruction(config)


def at(body: Any, path: str) -> Any:
    """What stands at a path such as `messages[2].content[0]`; raises LookupError if nothing does."""
    for key, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        body = body[key] if key else body[int(index)]
    return body


# -- typed dictionaries ---------------------------------------------------------------------------------------------


def _check(form: Any, body: dict[str, Any]) -> None:
    json.dumps(body)
    problem = _check_of(form)(body, "body")
    assert problem is None, problem


@cache
def _check_of(hint: Any) -> Check:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired, ReadOnly, Annotated):
        return _check_of(args[0])
    if hint is Any or hint is object:
        return lambda value, path: None
    if origin is Literal:
        return lambda value, path: None if value in args else f"{path}: {value!r} is not one of {args}"
    if origin in (Union, python_types.UnionType):
        return _union(args)
    if is_typeddict(hint):
        return _typed_dict(hint)
    if origin in (list, Iterable, Sequence):
        return _items(args[0])
    if origin in (dict, Mapping):
        return _values(args[1])
    return _instance(origin or hint)


def _instance(kind: Any) -> Check:
    accepted = {float: (int, float), None: python_types.NoneType}.get(kind, kind)
    assert isinstance(accepted, type | tuple), f"no check for the type {kind!r}"

    def check(value: Any, path: str) -> str | None:
        fits = isinstance(value, accepted) and (kind is bool or not isinstance(value, bool))
        return None if fits else f"{path}: {value!r:.80} is not {getattr(kind, '__name__', kind)}"

    return check


def _items(item: Any) -> Check:
    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, list):
            return f"{path}: {value!r:.80} is not a list"
        return _first(_check_of(item)(v, f"{path}[{i}]") for i, v in enumerate(value))

    return check


def _values(item: Any) -> Check:
    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, dict):
            return f"{path}: {value!r:.80} is not an object"
        return _first(_check_of(item)(v, f"{path}.{k}") for k, v in value.items())

    return check


def _typed_dict(form: Any) -> Check:
    fields = get_type_hints(form, include_extras=True)
    required = {name for name, hint in fields.items() if _is_required(form, hint)}

    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, dict):
            return f"{path}: {value!r:.80} is not an object"
        if unknown := value.keys() - fields.keys():
            return f"{path}: {form.__name__} has no key {', '.join(sorted(unknown))}"
        if missing := required - value.keys():
            return f"{path}: {form.__name__} needs {', '.join(sorted(missing))}"
        return _first(_check_of(fields[k])(v, f"{path}.{k}") for k, v in value.items())

    return check


def _is_required(form: Any, hint: Any) -> bool:
    return get_origin(hint) is Required or (form.__total__ and get_origin(hint) is not NotRequired)


def _union(members: tuple[Any, ...]) -> Check:
    """Whatever fits one member; the objects that say by a literal which they are answer for themselves."""
    tagged = [(member, _tags(member)) for member in members]

    def check(value: Any, path: str) -> str | None:
        fitting = [m for m, tags in tagged if all(_wears(value, key, tag) for key, tag in tags.items())]
        problems = [_check_of(member)(value, path) for member in fitting]
        if None in problems:
            return None
        told = [problem for problem in problems if problem and not problem.startswith(f"{path}: {value!r:.80} is not ")]
        names = ", ".join(getattr(m, "__name__", str(m)) for m in members)
        return " or ".join(told) or f"{path}: {value!r:.80} is none of {names}"

    return check


def _tags(form: Any) -> dict[str, tuple[bool, tuple[Any, ...]]]:
    """The keys by which a typed dictionary says what it is: whether each has to be there, and its values."""
    if not is_typeddict(form):
        return {}
    hints = {k: h for k, h in get_type_hints(form, include_extras=True).items() if k in {"type", "role"}}
    bare = {k: (_is_required(form, h), get_args(h)[0] if get_origin(h) is Required else h) for k, h in hints.items()}
    return {k: (required, get_args(h)) for k, (required, h) in bare.items() if get_origin(h) is Literal}


def _wears(value: Any, key: str, tag: tuple[bool, tuple[Any, ...]]) -> bool:
    required, values = tag
    if not isinstance(value, dict):
        return False
    return value[key] in values if key in value else not required


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


# -- what no type says ----------------------------------------------------------------------------------------------

_OWN_DATA = {"input", "args", "response", "source", "file", "image_url", "inline_data", "function"}
"""Keys whose values are somebody's data, in which an empty text means nothing."""


def _check_says_something(body: dict[str, Any], *keys: str) -> None:
    for key in keys:
        if key in body:
            problems = list(_empties(body[key], key))
            assert not problems, "; ".join(problems)


def _empties(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _empties(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in {"content", "parts", "output", "tool_calls"} and not item:
                yield f"{path}.{key} is empty"
            if key in {"text", "content"} and isinstance(item, str) and not item.strip() and not value.get("thought"):
                yield f"{path}.{key} is blank"
            if key not in _OWN_DATA:
                yield from _empties(item, f"{path}.{key}")
        if value.get("role") == "assistant" and not value.keys() & {"content", "tool_calls"}:
            yield f"{path} says nothing"


# -- Gemini -----------------------------------------------------------------------------------------------------------


def _only(body: dict[str, Any], *, required: set[str], optional: set[str] = frozenset()) -> None:  # pyright: ignore[reportArgumentType]
    assert required <= body.keys() <= required | optional, f"body: the keys are {sorted(body)}"
    assert isinstance(body["model"], str), f"body.model: {body['model']!r} is not text"


def _validate(form: Any, value: Any, path: str) -> Any:
    import pydantic

    try:
        return form.model_validate(value)
    except pydantic.ValidationError as error:
        raise AssertionError(f"{path}: {error}") from None


def _check_system_instruction(config: dict[str, Any]) -> None:
    if "system_instruction" in config:
        instruction = config["system_instruction"]
        _check_content(instruction, "config.system_instruction")
        assert all(part.keys() == {"text"} for part in instruction["parts"]), (
            "config.system_instruction takes only text"
        )


def _check_contents(contents: Any, path: str) -> None:
    assert isinstance(contents, list), f"{path}: {contents!r:.80} is not a list"
    for i, content in enumerate(contents):
        assert content.get("role") in {"user", "model"}, f"{path}[{i}].role: {content.get('role')!r}"
        _check_content(content, f"{path}[{i}]")


def _check_content(content: dict[str, Any], path: str) -> None:
    from google.genai import types

    _validate(types.Content, content, path)
    problems = list(_empties(content, path))
    assert not problems, "; ".join(problems)
    for i, part in enumerate(content["parts"]):
        forms = part.keys() - {"thought", "thought_signature"}
        assert len(forms) == 1, f"{path}.parts[{i}]: a part is one thing, not {sorted(forms)}"
        response = part.get("function_response")
        assert response is None or response.get("name"), f"{path}.parts[{i}]: a response names its tool"
