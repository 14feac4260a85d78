"""Request bodies taken apart by hand, so that the laws do not depend on the code they check."""

import json

from loom import render

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5.6",
    "openai_chat": "gpt-5.6",
    "gemini": "gemini-3.1-pro",
}
MARKS = ("cache_control", "prompt_cache_breakpoint")


def body_of(window, provider, **options):
    return render(window, provider, MODELS[provider], **options)


def strip(value):
    """A JSON value without its cache markers."""
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if k not in MARKS}
    return [strip(v) for v in value] if isinstance(value, list) else value


def flat(body, provider):
    """Every block in wire order, as (place, block); markers are still on them."""
    if provider == "anthropic":
        blocks = [("tools", t) for t in body.get("tools", [])] + [("system", s) for s in body.get("system", [])]
        return blocks + [(m["role"], b) for m in body["messages"] for b in m["content"]]
    if provider == "gemini":
        config = body.get("config", {})
        tools = [("tools", f) for t in config.get("tools", []) for f in t["function_declarations"]]
        system = [("system", p) for p in (config.get("system_instruction") or {}).get("parts", [])]
        return tools + system + [(c["role"], p) for c in body["contents"] for p in c["parts"]]
    blocks = [("tools", t) for t in body.get("tools", [])]
    for item in body["messages" if provider == "openai_chat" else "input"]:
        rest = {k: v for k, v in item.items() if k not in ("content", "tool_calls", "output")}
        for key in ("content", "output", "tool_calls"):
            found = item.get(key)
            parts = found if isinstance(found, list) else [found] if found is not None else []
            blocks += [(json.dumps(rest, sort_keys=True), part) for part in parts]
        if not any(item.get(key) for key in ("content", "output", "tool_calls")):
            blocks.append(("item", item))
    return blocks


def wire(body, provider):
    """The blocks as text without markers: what a prefix cache compares."""
    return [json.dumps([place, strip(block)], ensure_ascii=False) for place, block in flat(body, provider)]


def marked(body, provider):
    """Positions of the blocks that carry a marker, wherever inside."""
    return [i for i, (_, b) in enumerate(flat(body, provider)) if any(f'"{m}"' in json.dumps(b) for m in MARKS)]


def common(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
