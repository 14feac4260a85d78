"""A chatbot that remembers its users, in one file. No key is needed; name a model to have real answers.

It prints:

    Ann lives in Lisbon: True
    Bob hears of it: False
    <memory>
    Standing preferences and instructions of the user:
    - Please always answer in Portuguese

    Known facts:
    - user lives in: Lisbon
    </memory>
    left of Ann: ()
"""

from loom import Agent, open_memory_sync

PLACE = "sqlite:./chat.db"


def chat(text: str, *, user: str, session: str) -> str:
    """One turn. Each opens and closes the file, as if it were in another process."""
    with Agent("You are a friendly guide.", memory=PLACE).blocking as agent:
        return str(agent.run(text, user_id=user, session_id=session))


chat("I live in Porto.", user="ann", session="monday")
chat("I moved to Lisbon.", user="ann", session="monday")
chat("Please always answer in Portuguese.", user="ann", session="monday")
print("Ann lives in Lisbon:", "user lives in: Lisbon" in chat("Where do I live?", user="ann", session="tuesday"))
print("Bob hears of it:", "Lisbon" in chat("Where does Ann live?", user="bob", session="tuesday"))
with open_memory_sync(PLACE) as memory:
    print(memory.profile(user_id="ann"))
with Agent(memory=PLACE).blocking as agent:
    receipt = agent.forget("ann")  # memory and conversations
    print("left of Ann:", receipt.pending)
