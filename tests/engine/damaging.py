"""A file with memory and conversations, ways to damage copies of it, and everything that is then asked of them."""

import random

from loom.admin.doctor import examine
from loom.admin.maintenance import verify_store
from loom.agent.agent import Agent
from loom.core.clock import RecordIds
from loom.core.scope import Scope
from loom.engine import open_memory
from loom.errors import LoomError
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory.memory import Memory
from loom.providers.embedding.local import HashEmbedder
from loom.stores.sqlite import SqliteStore
from loom.testing import FakeClock, ScriptedModel

USERS = ("ann", "ben")
TOWNS = ("Oslo", "Berlin", "Rome", "Athens")


async def make(path):
    """Fill a file with all that one can hold: turns, facts, blocks, keys, vectors, jobs, and a conversation.

    It is the same file each time, but for the ids in the conversation.
    """
    url, clock = f"sqlite:{path}", FakeClock()
    ids = RecordIds(clock, random.Random(7).randbytes)
    given = {"embedder": HashEmbedder(), "extractor": RuleExtractor(), "clock": clock, "ids": ids}
    async with Memory(SqliteStore(path, clock=clock), **given) as memory:
        for user in USERS:
            for number in range(16):
                said = f"I moved to {TOWNS[number % 4]}. My boat number {number} is called Wind {number}."
                await memory.remember(said, user_id=user, session_id=f"s{number % 3}", attributes={"n": number})
            await memory.metabolize(user_id=user)
            await memory.set_block("plan", f"{user} sails to Rome in spring.", user_id=user)
            await memory.instruct("Always answer in short sentences.", user_id=user)
    async with agent_on(url, clock=clock) as agent:
        for number in range(4):
            await agent.run(f"Tell me about boat number {number}.", user_id="ann", session_id="talk")


def agent_on(url, **options):
    model = ScriptedModel(["It is a good boat."] * 9)
    return Agent("Be brief.", model=model, memory={"url": url, "embedder": HashEmbedder()}, facts="rules", **options)


def flip_bits(source, target, seed, bits=30):
    """A copy with so many bits flipped, anywhere behind the header, which says whose file it is."""
    data = bytearray(source.read_bytes())
    chance = random.Random(seed)
    for _ in range(bits):
        place = chance.randrange(100, len(data))
        data[place] ^= 1 << chance.randrange(8)
    target.write_bytes(data)


def replace_page(source, target, seed):
    """A copy with one page replaced by another one of the file, or by noise."""
    data = bytearray(source.read_bytes())
    size = int.from_bytes(data[16:18]) or 65536
    chance = random.Random(seed)
    pages = len(data) // size
    lost = chance.randrange(1, pages)
    other = chance.randrange(1, pages)
    noise = chance.randbytes(size)
    data[lost * size : (lost + 1) * size] = data[other * size : (other + 1) * size] if seed % 2 else noise
    target.write_bytes(data)


async def ask_everything(path):
    """Do everything with a file; returns the raw errors, and what each call came to: an outcome, or a LoomError."""
    url, raw, outcomes = f"sqlite:{path}", [], []

    async def call(name, action):
        try:
            outcome = await action()
        except LoomError as error:
            outcomes.append((name, error))
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            raw.append((name, error))
        else:
            outcomes.append((name, outcome))
            return outcome
        return None

    memory = open_memory(url, embedder=HashEmbedder(), extractor=RuleExtractor())
    for user in USERS:
        await ask_of_user(call, memory, user)
    await call("reembed", memory.reembed)
    await call("close", memory.aclose)

    async def turn(session):
        async with agent_on(url) as agent:
            return await agent.run("Where do I live?", user_id="ann", session_id=session)

    await call("agent", lambda: turn("new"))
    await call("agent goes on", lambda: turn("talk"))
    await call("doctor", lambda: examine(url))
    for repair in (False, True, False):
        await call(f"verify {repair}", lambda repair=repair: verified(path, repair))
    memory = open_memory(url, embedder=HashEmbedder())
    await call("recall after repair", lambda: memory.recall("Where is boat number 7?", user_id="ben"))
    await call("forget user", lambda: memory.forget(user_id="ann"))
    await call("close", memory.aclose)
    return raw, outcomes


async def ask_of_user(call, memory, user):
    who = {"user_id": user}
    await call("recall", lambda: memory.recall("Where is boat number 7?", **who))
    await call("recall statement", lambda: memory.recall("I moved to Oslo.", **who))
    await call("facts", lambda: memory.facts(history=True, **who))
    await call("profile", lambda: memory.profile(**who))
    await call("timeline", lambda: memory.timeline(about="boat", **who))
    await call("blocks", lambda: memory.blocks(**who))
    await call("stats", lambda: memory.stats(**who))
    await call("export", lambda: exported(memory, user))
    await call("remember", lambda: memory.remember("I live in Lima.", session_id="s1", **who))
    await call("metabolize", lambda: memory.metabolize(**who))
    await call("set_block", lambda: memory.set_block("plan", "new", **who))
    await call("state", lambda: memory.assert_fact("user", "likes", "tea", **who))
    records = await call("list", lambda: memory.store.list(Scope(user_id=user), limit=5)) or ()
    for record in records[:2]:
        await call("explain", lambda id=record.id: memory.explain(id, **who))
        await call("forget one", lambda id=record.id: memory.forget(id, **who))


async def exported(memory, user):
    return [line async for line in memory.export(user_id=user)]


async def verified(path, repair):
    store = SqliteStore(path)
    try:
        return await verify_store(store, repair=repair)
    finally:
        await store.aclose()
