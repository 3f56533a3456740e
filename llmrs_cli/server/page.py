"""The page at /: one static file, and a policy under which nothing but its own script can run.

Script and style are allowed by their hashes, computed here from the file itself, so neither an attribute
nor anything a model writes can become code, load an image or talk to another address.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources


@cache
def page() -> tuple[bytes, str]:
    """The page, and its Content-Security-Policy."""
    text = resources.files("llmrs_cli.server").joinpath("page.html").read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash(text, 'script')}; style-src {_hash(text, 'style')};"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), policy


def _hash(text: str, tag: str) -> str:
    """The source expression of the one inline element of this kind."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
