"""An index that tests cut off, or interrupt."""

from loom.errors import StoreUnavailable


class Switched:
    """An index that can be cut off: every call then fails as one to a server that is down does."""

    def __init__(self, index):
        self._index = index
        self.is_down = False
        self.before = {}
        """What is done once before a call, by its name."""

    @property
    def place(self):
        return self._index.place

    @property
    def residue(self):
        return self._index.residue

    async def aclose(self):
        await self._index.aclose()

    def __getattr__(self, name):
        async def call(*args, **named):
            if self.is_down:
                raise StoreUnavailable("the index is down")
            await self.before.pop(name, nothing)()
            return await getattr(self._index, name)(*args, **named)

        # Only what a vector index has, so that protocols see no more than that.
        if name.startswith("_"):
            raise AttributeError(name)
        return call


async def nothing():
    """What is done before most calls."""
