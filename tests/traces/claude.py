"""Lines of Claude Code, made by hand from the shapes that it writes."""

import json

SESSION = "5e551017-0000-4000-8000-000000000001"
MODEL = "claude-sonnet-4-5"


def at(n):
    """The time of line number n: a second apart."""
    return f"2026-11-02T09:{n // 60:02}:{n % 60:02}.000Z"


def line(type, id, parent=None, **more):
    """Any line with a place in the tree. The number in its id is also its time."""
    n = int("".join(c for c in id if c.isdigit()) or 0)
    base = {"type": type, "uuid": id, "parentUuid": parent, "sessionId": SESSION, "timestamp": at(n)}
    return {**base, "isSidechain": False, "version": "2.1.90", "cwd": "/home/someone/work", **more}


def user(id, parent, content, **more):
    return line("user", id, parent, message={"role": "user", "content": content}, **more)


def assistant(id, parent, content, *, message=None, usage=None, model=MODEL, **more):
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    body = {"id": message or f"msg_{id}", "role": "assistant", "model": model, "content": blocks}
    if usage is not False:
        body["usage"] = usage or used(10, 5)
    return line("assistant", id, parent, message=body, requestId=f"req_{message or id}", **more)


def used(fresh, output, read=0, short=0, long=0):
    split = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}
    return {
        "input_tokens": fresh,
        "output_tokens": output,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": short + long,
        "cache_creation": split,
    }


def result(id, parent, text, tool="toolu_1", **more):
    return user(id, parent, [{"type": "tool_result", "tool_use_id": tool, "content": text}], **more)


def call(name="Bash", tool="toolu_1"):
    return {"type": "tool_use", "id": tool, "name": name, "input": {"command": "ls"}}


def queued(id, parent, prompt, mode="prompt", **more):
    return line(
        "attachment", id, parent, attachment={"type": "queued_command", "prompt": prompt, "commandMode": mode, **more}
    )


def boundary(id, logical, **metadata):
    return line(
        "system",
        id,
        None,
        subtype="compact_boundary",
        logicalParentUuid=logical,
        content="Conversation compacted",
        compactMetadata={"trigger": "auto", **metadata},
    )


def text_of(*lines):
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines)
