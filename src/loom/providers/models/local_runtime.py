"""A GGUF file in memory, run by llama.cpp inside this process."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any
from urllib.request import Request, urlopen

from anyio import to_thread

from loom.errors import MissingExtra, NotFound, ProviderError
from loom.providers.models.sdk import Body

_SILENT = -1


class Runtime:
    """A loaded model. llama.cpp also listens on a free port of the loopback: only who has `key` is answered there."""

    def __init__(self, path: Path, *, threads: int, context_window: int) -> None:
        try:
            import xllamacpp  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtra(f"the model local:{path}", "local") from error
        if not path.is_file():
            raise NotFound(f"there is no model file {path}; give the path of a GGUF file")
        self.key = secrets.token_urlsafe()
        loader: Any = xllamacpp
        params = loader.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context_window
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup = False
        params.verbosity = _SILENT
        params.api_keys = [self.key]
        try:
            self._server: Any = loader.Server(params)
        except RuntimeError as error:
            raise ProviderError(
                f"{path} cannot be loaded ({error}); is it a GGUF file, and is there memory?"
            ) from error
        self.address: str = self._server.listening_address
        self.context_window = self._read_window()

    def start(self, body: Body) -> Generation:
        """Begin to answer a request in the Chat form; answers are made one after the other."""
        return Generation(self._server, body)

    def _read_window(self) -> int:
        """The window as llama.cpp made it: rounded up, and no larger than what the model was trained for."""
        asked = Request(f"{self.address}/props", headers={"authorization": f"Bearer {self.key}"})  # noqa: S310
        with urlopen(asked, timeout=30) as answer:  # noqa: S310
            return json.load(answer)["default_generation_settings"]["n_ctx"]


class Generation:
    """One answer on its way: a thread writes it, the caller reads it.

    It ends with None. It can be stopped at every token; not while the prompt is read.
    """

    def __init__(self, server: Any, body: Body) -> None:
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._stopped = Event()
        self._thread = Thread(target=self._run, args=(server, body), name="loom-local-model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether something may still be written."""
        return self._thread.is_alive()

    async def next(self) -> Body | None:
        """The next event of the stream; None at its end. Raises what llama.cpp raised."""
        event = await to_thread.run_sync(self._events.get, abandon_on_cancel=True)
        if isinstance(event, Exception):
            raise ProviderError(f"llama.cpp refused the request ({event})") from event
        return event

    def stop(self) -> None:
        """Write no more."""
        self._stopped.set()

    async def ended(self) -> None:
        """Wait until nothing is written any more."""
        await to_thread.run_sync(self._thread.join)

    def _run(self, server: Any, body: Body) -> None:
        try:
            server.handle_chat_completions(body, self._take)
        except Exception as error:  # noqa: BLE001  (whatever it is, it belongs to who asked)
            self._events.put(error)
        self._events.put(None)

    def _take(self, event: Body) -> bool:
        self._events.put(event)
        return self._stopped.is_set()
