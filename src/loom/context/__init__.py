"""What the model sees: sections of entries, compiled into one window and rendered for a provider."""
