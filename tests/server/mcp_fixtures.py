"""The tools, resources and prompts that the MCP conformance suite asks for, beside those of Loom on the same app.

The suite says what each of them must answer. What it tests with them is the road there and back: our routes, limits and
checks, the transport, and both ways in which a server can ask its client something in the middle of a call.

`python -m tests.server.mcp_fixtures STORE` serves them, and prints the address.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import anyio
import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS
from starlette.applications import Starlette

from loom import open_checkpoints, open_memory
from loom.cli.serve import listening
from loom.server.http.app import create_app
from loom.server.http.listen import http_server

Answer: TypeAlias = types.CallToolResult | types.InputRequiredResult
Tool: TypeAlias = Callable[[Any, Any], Awaitable[Answer]]

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WAV: Final = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
PAUSE: Final = 0.05
"""Seconds between two messages of one call, as the suite wants them; nothing is measured by it."""
KEY: Final = secrets.token_bytes(32)

TOOLS: Final[dict[str, tuple[Tool, Mapping[str, Any]]]] = {}
NOTHING: Final = {"type": "object", "properties": {}}


def tool(schema: Mapping[str, Any] = NOTHING, name: str = "") -> Callable[[Tool], Tool]:
    """Add a tool under a name, or that of its function behind `test_`."""

    def add(function: Tool) -> Tool:
        TOOLS[name or f"test_{function.__name__}"] = (function, schema)
        return function

    return add


def said(*content: Any, is_error: bool = False) -> types.CallToolResult:
    parts = [types.TextContent(type="text", text=part) if isinstance(part, str) else part for part in content]
    return types.CallToolResult(content=parts, is_error=is_error)


def embedded(uri: str, text: str, mime_type: str = "text/plain") -> types.EmbeddedResource:
    content = types.TextResourceContents(uri=uri, text=text, mime_type=mime_type)
    return types.EmbeddedResource(type="resource", resource=content)


def of_strings(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": [*names]}


# Kinds of content.


@tool()
async def simple_text(ctx: Any, call: Any) -> Answer:
    return said("This is a simple text response for testing.")


@tool()
async def image_content(ctx: Any, call: Any) -> Answer:
    return said(types.ImageContent(type="image", data=PNG, mime_type="image/png"))


@tool()
async def audio_content(ctx: Any, call: Any) -> Answer:
    return said(types.AudioContent(type="audio", data=WAV, mime_type="audio/wav"))


@tool()
async def embedded_resource(ctx: Any, call: Any) -> Answer:
    return said(embedded("test://embedded-resource", "This is an embedded resource content."))


@tool()
async def multiple_content_types(ctx: Any, call: Any) -> Answer:
    image = types.ImageContent(type="image", data=PNG, mime_type="image/png")
    data = embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return said("Multiple content types test:", image, data)


@tool()
async def error_handling(ctx: Any, call: Any) -> Answer:
    return said("This tool intentionally returns an error for testing", is_error=True)


# Messages in the middle of a call.


@tool()
async def tool_with_logging(ctx: Any, call: Any) -> Answer:
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)
        await anyio.sleep(PAUSE)
    return said("Three lines were logged.")


TOOLS["test_logging_tool"] = TOOLS["test_tool_with_logging"]


@tool()
async def tool_with_progress(ctx: Any, call: Any) -> Answer:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100)
        await anyio.sleep(PAUSE)
    return said("All of it is done.")


@tool()
async def reconnection(ctx: Any, call: Any) -> Answer:
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await anyio.sleep(PAUSE)
    return said("The stream was closed, and this came behind it.")


# Questions to the client, as requests of the server (until 2025-11-25).


@tool(of_strings("prompt"), "test_sampling")
async def sampling_by_request(ctx: Any, call: Any) -> Answer:
    text = types.TextContent(type="text", text=call.arguments["prompt"])
    asked = [types.SamplingMessage(role="user", content=text)]
    answer = await ctx.session.create_message(asked, max_tokens=100, related_request_id=ctx.request_id)
    return said(f"LLM response: {answer.content.text}")


async def ask(ctx: Any, message: str, schema: dict[str, Any]) -> Answer:
    answer = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
    return said(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")


@tool(of_strings("message"), "test_elicitation")
async def elicitation_by_request(ctx: Any, call: Any) -> Answer:
    return await ask(ctx, call.arguments["message"], of_strings("username", "email"))


DEFAULTS: Final = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}


@tool()
async def elicitation_sep1034_defaults(ctx: Any, call: Any) -> Answer:
    return await ask(ctx, "Please review", {"type": "object", "properties": DEFAULTS})


PLAIN: Final = ["option1", "option2", "option3"]
TITLED: Final = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
ENUMS: Final = {
    "untitledSingle": {"type": "string", "enum": PLAIN},
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": PLAIN}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}


@tool()
async def elicitation_sep1330_enums(ctx: Any, call: Any) -> Answer:
    return await ask(ctx, "Please choose", {"type": "object", "properties": ENUMS})


# Questions to the client, as results that want more (from 2026-07-28 on).


def elicitation(message: str, **properties: str) -> types.ElicitRequest:
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": [*properties],
    }
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text: str, most: int) -> types.CreateMessageRequest:
    content = types.TextContent(type="text", text=text)
    asked = [types.SamplingMessage(role="user", content=content)]
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=asked, max_tokens=most))


def more(requests: Mapping[str, Any], state: str | None = None) -> types.InputRequiredResult:
    return types.InputRequiredResult(
        input_requests=dict(requests), request_state=None if state is None else seal(state)
    )


def seal(state: str) -> str:
    return f"{state}.{hmac.new(KEY, state.encode(), hashlib.sha256).hexdigest()}"


def unsealed(call: Any) -> str:
    state = (call.request_state or "").rpartition(".")[0]
    if not hmac.compare_digest(seal(state), call.request_state or ""):
        raise MCPError(code=INVALID_PARAMS, message="requestState is not one of this server")
    return state


def given(call: Any, name: str, kind: type) -> Any:
    """What the client answered under this name; None if it did not, or with something else."""
    found = (call.input_responses or {}).get(name)
    return found if isinstance(found, kind) else None


def field(call: Any, name: str, key: str) -> Any:
    answer = given(call, name, types.ElicitResult)
    return None if answer is None else (answer.content or {}).get(key)


NAME: Final = elicitation("What is your name?", name="string")


@tool()
async def input_required_result_elicitation(ctx: Any, call: Any) -> Answer:
    name = field(call, "user_name", "name")
    return said(f"Hello, {name}!") if isinstance(name, str) else more({"user_name": NAME})


@tool()
async def input_required_result_sampling(ctx: Any, call: Any) -> Answer:
    answer = given(call, "capital_question", types.CreateMessageResult)
    if answer is None:
        return more({"capital_question": sampling("What is the capital of France?", 100)})
    return said(str(getattr(answer.content, "text", answer.content)))


@tool()
async def input_required_result_list_roots(ctx: Any, call: Any) -> Answer:
    answer = given(call, "client_roots", types.ListRootsResult)
    if answer is None:
        return more({"client_roots": types.ListRootsRequest()})
    return said(", ".join(str(root.uri) for root in answer.roots))


async def confirmed(ctx: Any, call: Any) -> Answer:
    if call.input_responses is None:
        return more({"confirm": elicitation("Please confirm", ok="boolean")}, "confirming")
    return said(f"state-ok: {unsealed(call)}")


tool(name="test_input_required_result_request_state")(confirmed)
tool(name="test_input_required_result_tampered_state")(confirmed)


@tool()
async def input_required_result_multiple_inputs(ctx: Any, call: Any) -> Answer:
    wanted = {
        "user_name": NAME,
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    if not wanted.keys() <= (call.input_responses or {}).keys():
        return more(wanted, "all three")
    return said(f"Hello, {field(call, 'user_name', 'name')}: {unsealed(call)}")


@tool()
async def input_required_result_multi_round(ctx: Any, call: Any) -> Answer:
    if call.input_responses is None:
        return more({"step1": elicitation("Step 1: What is your name?", name="string")}, "one")
    if unsealed(call) == "one":
        return more({"step2": elicitation("Step 2: What is your favorite color?", color="string")}, "two")
    return said(f"It is {field(call, 'step2', 'color')}.")


@tool()
async def input_required_result_capabilities(ctx: Any, call: Any) -> Answer:
    has = ctx.session.client_capabilities or types.ClientCapabilities()
    wanted: dict[str, Any] = {}
    if has.elicitation is not None:
        wanted["user_name"] = NAME
    if has.sampling is not None:
        wanted["greeting"] = sampling("Generate a greeting", 50)
    return more(wanted) if wanted else said("This client can be asked nothing.")


@tool()
async def streaming_elicitation(ctx: Any, call: Any) -> Answer:
    await ctx.session.report_progress(1, 2)
    return await input_required_result_elicitation(ctx, call)


@tool()
async def missing_capability(ctx: Any, call: Any) -> Answer:
    has = ctx.session.client_capabilities
    if has is None or has.sampling is None:
        data = types.MissingRequiredClientCapabilityErrorData(
            required_capabilities=types.ClientCapabilities(sampling=types.SamplingCapability())
        )
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="this tool needs a client that samples",
            data=data.model_dump(by_alias=True, exclude_none=True),
        )
    return said("This client samples.")


# Schemas and headers.

ADDRESS: Final = {"street": {"type": "string"}, "city": {"type": "string"}}
SCHEMA_2020_12: Final = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": ADDRESS}},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
IN_A_HEADER: Final = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}


@tool(SCHEMA_2020_12, "json_schema_2020_12_tool")
async def json_schema_2020_12_tool(ctx: Any, call: Any) -> Answer:
    return said("Its schema is what it is for.")


@tool(IN_A_HEADER)
async def custom_headers(ctx: Any, call: Any) -> Answer:
    return said(f"The region is {call.arguments['region']}.")


# Resources and prompts.

RESOURCES: Final = {"test://static-text": "text/plain", "test://static-binary": "image/png"}
TEMPLATE: Final = "test://template/{id}/data"
PROMPTS: Final = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


def read(uri: str) -> types.TextResourceContents | types.BlobResourceContents | None:
    start, end = TEMPLATE.split("{id}")
    if uri == "test://static-text":
        text = "This is the content of the static text resource."
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=text)
    if uri == "test://static-binary":
        return types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
    if uri.startswith(start) and uri.endswith(end):
        id = uri[len(start) : -len(end)]
        text = json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=text)
    return None


def prompt(params: Any) -> types.GetPromptResult | types.InputRequiredResult:
    values = params.arguments or {}
    content: list[Any] = []
    match params.name:
        case "test_simple_prompt":
            content = ["This is a simple prompt for testing."]
        case "test_prompt_with_arguments":
            content = [f"Prompt with arguments: arg1='{values.get('arg1')}', arg2='{values.get('arg2')}'"]
        case "test_prompt_with_embedded_resource":
            resource = embedded(values["resourceUri"], "Embedded resource content for testing.")
            content = [resource, "Please process the embedded resource above."]
        case "test_prompt_with_image":
            image = types.ImageContent(type="image", data=PNG, mime_type="image/png")
            content = [image, "Please analyze the image above."]
        case _:
            context = field(params, "user_context", "context")
            if context is None:
                asked = elicitation("What context should the prompt use?", context="string")
                return more({"user_context": asked})
            content = [f"The context is {context}."]
    messages = [types.PromptMessage(role="user", content=part) for part in said(*content).content]
    return types.GetPromptResult(messages=messages)


class RememberedEvents(EventStore):
    """The messages of all streams, so that a client that lost one can go on."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        if not last_event_id.isdecimal() or not 0 < int(last_event_id) <= len(self._events):
            return None
        last = int(last_event_id)
        stream_id = self._events[last - 1][0]
        for place, (stream, message) in enumerate(self._events[last:], last + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(place)))
        return stream_id


def with_fixtures(ours: Server[Any]) -> Starlette:
    """Serve the tools of the suite beside those of a server, with sessions and streams, which the suite needs."""
    bus = InMemorySubscriptionBus()

    def answer_of(method: str) -> Any:
        found = ours.get_request_handler(method)
        assert found is not None, method
        return found.handler

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        found = await answer_of("tools/list")(ctx, params)
        tools = [
            types.Tool(name=name, description=name, input_schema=dict(schema)) for name, (_, schema) in TOOLS.items()
        ]
        return found.model_copy(update={"tools": [*found.tools, *tools]})

    async def call_tool(ctx: Any, params: Any) -> Answer:
        if params.name in TOOLS:
            return await TOOLS[params.name][0](ctx, params)
        return await answer_of("tools/call")(ctx, params)

    async def list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
        found = await answer_of("resources/list")(ctx, params)
        listed = [types.Resource(uri=uri, name=uri, description=uri, mime_type=kind) for uri, kind in RESOURCES.items()]
        return found.model_copy(update={"resources": [*found.resources, *listed]})

    async def list_templates(ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
        found = await answer_of("resources/templates/list")(ctx, params)
        listed = types.ResourceTemplate(uri_template=TEMPLATE, name="test", description="One by its id.")
        return found.model_copy(update={"resource_templates": [*found.resource_templates, listed]})

    async def read_resource(ctx: Any, params: Any) -> Any:
        content = read(str(params.uri))
        return (
            await answer_of("resources/read")(ctx, params)
            if content is None
            else types.ReadResourceResult(contents=[content])
        )

    async def list_prompts(ctx: Any, params: Any) -> types.ListPromptsResult:
        found = await answer_of("prompts/list")(ctx, params)
        listed = [
            types.Prompt(
                name=name,
                description=name,
                arguments=[types.PromptArgument(name=one, description=one, required=True) for one in arguments],
            )
            for name, arguments in PROMPTS.items()
        ]
        return found.model_copy(update={"prompts": [*found.prompts, *listed]})

    async def get_prompt(ctx: Any, params: Any) -> Any:
        return prompt(params) if params.name in PROMPTS else await answer_of("prompts/get")(ctx, params)

    async def nothing(ctx: Any, _params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    @tool()
    async def trigger_tool_change(ctx: Any, call: Any) -> Answer:
        await bus.publish(ToolsListChanged())
        return said("Said so.")

    @tool()
    async def trigger_prompt_change(ctx: Any, call: Any) -> Answer:
        await bus.publish(PromptsListChanged())
        return said("Said so.")

    both = Server(  # pyright: ignore[reportDeprecated] - of the older protocol, which the suite tests as well
        "loom",
        version=ours.version or "",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=answer_of("completion/complete"),
        on_set_logging_level=nothing,
        on_subscribe_resource=nothing,
        on_unsubscribe_resource=nothing,
        on_subscriptions_listen=ListenHandler(bus),
    )
    return both.streamable_http_app(event_store=RememberedEvents(), retry_interval=100, host="")


async def main(url: str) -> None:
    """Serve until the process is ended."""
    async with open_memory(url) as memory, aclosing(open_checkpoints(url)) as checkpoints:
        app = create_app(memory, checkpoints, mcp_app=with_fixtures)
        with listening("127.0.0.1", 0) as listener:
            sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
            sys.stdout.flush()
            await http_server(app).serve(sockets=[listener])


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
