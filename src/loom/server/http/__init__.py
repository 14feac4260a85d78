"""`loom serve`: the memory and the conversations over HTTP."""
