"""Memory: what an agent should know next time, in four layers, with facts that have a history."""
