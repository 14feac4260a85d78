"""Text: words, dates, fences and token counts."""
