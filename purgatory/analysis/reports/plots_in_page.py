"""Plots in a page of HTML: the library that draws them, once, and a script for each.

The scripts are written here and not by plotly's Python, of which a page needs two files only: to
import it, and to have it look at each figure, takes longer than all else of a page. That it would
take the figures is what tests say.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from purgatory.analysis.reports.report_plots import Figure

_SETTINGS = {"displayModeBar": False, "responsive": True}


@cache
def has_library() -> bool:
    """Whether what draws plots is installed: a page comes without it too, and says so."""
    try:
        resources.files("plotly")
    except ModuleNotFoundError:
        return False
    return True


def library() -> str:
    """The scripts that a page needs before its first plot, some five million characters."""
    if not has_library():
        return ""
    files = resources.files("plotly") / "package_data"
    script = (files / "plotly.min.js").read_text(encoding="utf-8")
    template = (files / "templates" / "plotly.json").read_text(encoding="utf-8")
    themed = (
        f"const TEMPLATE = {_as_script(json.loads(template))};\n"
        "const themed = layout => ({template: TEMPLATE, ...layout});\n"
        f"const SETTINGS = {_as_script(_SETTINGS)};"
    )
    return f"<script>{script}</script>\n<script>{themed}</script>"


def drawing(name: str, plot: Figure) -> str:
    """The place of a plot, and the script that draws it there.

    Args:
        name: an identifier that the page has once, of letters, digits and `-`.
        plot: its data and its layout, in plain data.
    """
    height = f"{plot['layout']['height']}px" if "height" in plot["layout"] else "100%"
    data, layout = _as_script(plot["data"]), _as_script(plot["layout"])
    return (
        f'<div style="height:{height}; width:100%;"><div id="{name}" class="plotly-graph-div" '
        'style="height:100%; width:100%;"></div>'
        f'<script>Plotly.newPlot("{name}", {data}, themed({layout}), SETTINGS);</script></div>'
    )


def _as_script(value: Any) -> str:
    """Plain data as a script has it: nothing in a text ends the script, or is markup in it."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
