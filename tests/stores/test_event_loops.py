"""A store on a server that outlives an event loop: each `asyncio.run` is a loop of its own, with its own connections.

In a process of its own, because a loop that ends leaves connections open, which the tests here would take for a leak.
"""

import subprocess
import sys

import pytest

from tests.stores.postgres import conftest as postgres
from tests.stores.redis import conftest as redis

PROGRAM = """
import asyncio, sys, threading
from loom import Agent, open_memory
from loom.testing import ScriptedModel

memory = open_memory(sys.argv[1])


async def write(number, users):
    await asyncio.gather(*(memory.remember(f"Note {number}.", user_id=f"u{user}") for user in range(users)))
    return len((await memory.recall("note", user_id="u0")).hits)


print([asyncio.run(write(number, users)) for number, users in enumerate((1, 1, 4))])

done, over = threading.Event(), threading.Event()


async def elsewhere():
    await write(3, 1)
    done.set()
    await asyncio.to_thread(over.wait)


other = threading.Thread(target=asyncio.run, args=(elsewhere(),))
other.start()
done.wait()
print(asyncio.run(write(4, 1)))
asyncio.run(memory.aclose())
over.set()
other.join()

agent = Agent("Be brief.", model=ScriptedModel(["a", "b", "c"]), memory=sys.argv[1])
said = [asyncio.run(agent.run("Hello.", user_id="ann", session_id="s")).text for _ in range(2)]
print(*said, agent.run_sync("Hello.", user_id="ann", session_id="s").text)
agent.close()
"""


def postgres_url():
    return postgres.started().server.url("loom_app")


def redis_url():
    return f"{redis.started().url()}?prefix={redis.new_prefix()}"


@pytest.mark.parametrize("place", [postgres_url, redis_url, redis.cluster_url])
def test_a_store_goes_on_in_the_next_loop(place):
    done = subprocess.run([sys.executable, "-c", PROGRAM, place()], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[1, 2, 3]", "5", "a b c"], done.stderr
