"""Fences: stored text is shown as data, and cannot get out."""

from __future__ import annotations

import re


def fenced(tag: str, text: str, note: str = "") -> str:
    """The text between an opening and a closing tag, with a note for the model in front.

    Whatever looks like this tag inside the text loses its bracket, so that the text can neither close its fence nor
    open another.
    """
    inside = re.sub(rf"<(?=\s*(?:/\s*)?{re.escape(tag)}\b)", "&lt;", text, flags=re.IGNORECASE)
    body = f"<{tag}>\n{inside}\n</{tag}>"
    return f"{note}\n{body}" if note else body
