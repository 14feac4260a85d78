"""One measurement of loomflow, run by a Python that has it: scale_flow.py FILE; texts and questions on stdin."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib import import_module
from typing import Any


async def main(path: str, given: dict[str, Any]) -> None:
    types: Any = import_module("loomflow.core.types")
    stores: Any = import_module("loomflow.memory.sqlite")
    memory = stores.SqliteMemory(path, with_facts=False)
    begin, said = time.perf_counter(), given["texts"]
    for number, text in enumerate(said):
        episode = types.Episode(session_id=f"s{number // 100}", user_id="u", input=text, output="")
        await memory.remember(episode)
    written = len(said) / (time.perf_counter() - begin)
    cpu: list[float] = []
    for question in given["questions"]:
        start = time.process_time()
        await memory.recall(question, user_id="u", limit=8)
        cpu.append((time.process_time() - start) * 1000)
    print(json.dumps({"turns_per_s": written, "cpu_ms": cpu}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.load(sys.stdin)))
