"""Render: a window becomes one provider's complete request body. Pure; nothing is read, nothing is counted."""
