"""Lines of Codex, made by hand from the shapes that it writes."""

import json
from itertools import count

_CLOCK = count()


def line(type, payload, at=None):
    n = next(_CLOCK) % 3600
    return {"timestamp": at or f"2026-11-03T10:{n // 60:02}:{n % 60:02}.000Z", "type": type, "payload": payload}


def meta(id, at=None, **more):
    return line(
        "session_meta", {"id": id, "cwd": "/home/someone/work", "cli_version": "0.153.0", "source": "cli", **more}, at
    )


def turn(model="gpt-5.5", effort="medium"):
    return line("turn_context", {"model": model, "effort": effort, "cwd": "/home/someone/work"})


def event(type, **more):
    return line("event_msg", {"type": type, **more})


def item(role, *texts):
    kind = "output_text" if role == "assistant" else "input_text"
    return line(
        "response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": t} for t in texts]}
    )


def said(text):
    """A user's message: Codex writes it twice."""
    return [item("user", text), event("user_message", message=text)]


def answered(text):
    return [event("agent_message", message=text), item("assistant", text)]


def counts(input, cached, output):
    total = input + output
    return {
        "input_tokens": input,
        "cached_input_tokens": cached,
        "output_tokens": output,
        "reasoning_output_tokens": 0,
        "total_tokens": total,
    }


def counted(total, last=None):
    info = {"total_token_usage": counts(*total), "model_context_window": 272_000}
    if last:
        info["last_token_usage"] = counts(*last)
    return event("token_count", info=info, rate_limits={"primary": {"used_percent": float(next(_CLOCK))}})


def text_of(*lines):
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines)
