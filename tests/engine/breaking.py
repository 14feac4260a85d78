"""A store that breaks off, for copies that have to go on."""


class Broken(Exception):
    pass


class Breaking:
    """A store whose calls of these names fail from a moment on, each before or after it happened."""

    def __init__(self, store, calls, is_after, *, names):
        self._store, self._left, self._is_after, self._names = store, calls, is_after, names

    def __getattr__(self, name):
        method = getattr(self._store, name)
        if name not in self._names:
            return method

        async def call(*args, **named):
            self._left -= 1
            if self._left < 0 and not self._is_after:
                raise Broken
            done = await method(*args, **named)
            if self._left < 0:
                raise Broken
            return done

        return call
