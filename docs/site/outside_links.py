"""Lets the site show what the documents link to outside of docs/, and files that are no pages.

The documents are written to be read in the repository as well, where such a link leads to a file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Make plain text of links out of the site, if what they name is in the repository."""
    here = Path(page.file.abs_src_path).parent
    docs = Path(config.docs_dir).resolve()

    def plain(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        if target.is_relative_to(docs) or not target.exists():
            return link[0]
        return f"{link[1]} (`{target.relative_to(_ROOT)}`)"

    return _LINK.sub(plain, markdown)
