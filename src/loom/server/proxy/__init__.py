"""`loom proxy`: between a program and its provider. As it comes, it changes nothing; each thing it can do is a choice.

`app` passes calls on, `journal` records them. `features` joins the four that change a request (`markers`, `memory`,
`tool_results`, `compaction`), each made of `edits` of the JSON text and allowed by the `ledger`.
"""

from loom.server.proxy.app import UPSTREAMS, open_proxy, server_of, upstreams_of
from loom.server.proxy.features import Features

__all__ = ["UPSTREAMS", "Features", "open_proxy", "server_of", "upstreams_of"]
