"""Lets the site be searched where it is opened from a folder, without a server.

The theme then reads the index from a script, which is written here, and starts a worker, for which
`search_from_a_folder.js` stands in.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

_STAND_IN = Path(__file__).with_suffix(".js")
_PLACE = f"assets/javascripts/{_STAND_IN.name}"


def on_config(config: Any) -> Any:
    """Have each page load the stand-in before the theme's own scripts."""
    config.extra.setdefault("polyfills", []).append(_PLACE)
    return config


def on_post_build(config: Any) -> None:
    """Write the stand-in, and the index as a script."""
    site = Path(config.site_dir)
    shutil.copyfile(_STAND_IN, site / _PLACE)
    index = (site / "search/search_index.json").read_text(encoding="utf-8")
    (site / "search/search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
