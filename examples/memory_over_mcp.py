"""Memory for any program that speaks MCP: a client starts `loom mcp` and calls its tools (extra `mcp`).

It prints:

    remember, recall, facts, instruct, block, forget, history, explain
    ['user lives_in Madrid', 'I live in Madrid.']
"""

import os
import sys
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

OPTIONS = ["-m", "loom", "mcp", "--url", "sqlite:./mcp.db", "--user", "ann"]
SERVER = StdioServerParameters(command=sys.executable, args=OPTIONS, env=dict(os.environ))


async def main() -> None:
    """Two conversations: what the first one keeps, the second one finds."""
    async with stdio_client(SERVER) as streams, ClientSession(*streams) as session:
        await session.initialize()
        print(", ".join(tool.name for tool in (await session.list_tools()).tools))
        await session.call_tool("remember", {"text": "I live in Madrid.", "by": "user"})
    async with stdio_client(SERVER) as streams, ClientSession(*streams) as session:
        await session.initialize()
        found = await session.call_tool("recall", {"query": "Where does Ann live?"})
        answer: dict[str, Any] = found.structured_content or {}
        print([item["text"] for item in answer["items"]])


anyio.run(main)
