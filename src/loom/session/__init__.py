"""One conversation: its history, what is shown of it, and what keeps it inside the window."""
