"""The live view of a cluster in the terminal, with faults that can be pressed.

    purgatory cluster --watch

Above: brokers and their purgatories, partitions with leaders, in-sync replicas and watermarks.
Below: what can be made to go wrong (move with the arrows, press with Enter), and what has been;
and a line in which any other fault is typed, after `f`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any, ClassVar

import structlog
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.suggester import SuggestFromList
from textual.widgets import DataTable, Footer, Header, Input, OptionList, RichLog
from textual.widgets.option_list import Option

from purgatory.cluster.control.offered_faults import offered_faults
from purgatory.cluster.control.typed_fault import EXAMPLE, suggestions, typed_fault
from purgatory.cluster.fault_injection import Faults
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.fault_text import fault_text
from purgatory.kafka.faults import Fault
from purgatory.settings.addresses import host_and_port

State = dict[str, Any]
Row = tuple[str, ...]

_REFRESH_S = 0.5
_KEPT_EVENTS = 200

_BROKERS = ("broker", "alive", "clients", "waits", "oldest ms", "completed", "expired")
_PARTITIONS = ("partition", "leader", "epoch", "in sync", "out", "HW", "log ends")


class RecentEvents:
    """Takes what is logged, so that it does not run across the screen."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_EVENTS)

    def __call__(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Keep one event: a processor of structlog's."""
        name = event.pop("event", "")
        event.pop("exc_info", None)
        values = " ".join(f"{key}={value}" for key, value in event.items())
        self.lines.append(f"{time.strftime('%H:%M:%S')} {name} {values}")
        raise structlog.DropEvent


class ClusterWatch(App[None]):
    """Shows a cluster until it is left with q.

    Args:
        state: what `cluster_state` tells, asked twice a second.
        faults: where faults begin and end.
        events: what was logged.
    """

    CSS = """
    #tables { height: 3fr; }
    #below { height: 2fr; }
    #faults { width: 1fr; border: round $accent; }
    #events { width: 2fr; border: round $accent; }
    DataTable { height: 1fr; border: round $accent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("e", "end_all", "end all faults"),
        Binding("f", "type_a_fault", "type a fault"),
    ]
    TITLE = "purgatory cluster"

    def __init__(
        self,
        state: Callable[[], State],
        faults: Faults,
        events: RecentEvents,
    ) -> None:
        super().__init__()
        self._state = state
        self._faults = faults
        self._events = events
        self._offered: list[Fault] = []

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Header()
        with Vertical(id="tables"):
            yield DataTable(id="brokers", cursor_type="none")
            yield DataTable(id="partitions", cursor_type="none")
        with Horizontal(id="below"):
            yield OptionList(id="faults")
            yield RichLog(id="events", max_lines=_KEPT_EVENTS, wrap=True)
        yield Input(
            id="typed",
            placeholder=f"any other fault: {EXAMPLE}",
            suggester=SuggestFromList(suggestions()),
        )
        yield Footer()

    def on_mount(self) -> None:
        """Begin to show what there is."""
        self.query_one("#brokers", DataTable).add_columns(*_BROKERS)
        self.query_one("#partitions", DataTable).add_columns(*_PARTITIONS)
        self.query_one("#brokers").border_title = "brokers and what waits there"
        self.query_one("#partitions").border_title = "partitions"
        self.query_one("#faults").border_title = "faults: press Enter"
        self.query_one("#events").border_title = "what happened"
        self.query_one("#faults", OptionList).focus()
        self.show_state()
        self.set_interval(_REFRESH_S, self.show_state)

    def show_state(self) -> None:
        """Show what the cluster is like now."""
        if not self.query("#brokers"):
            return  # the screen is being left
        state = self._state()
        self.sub_title = state["bootstrap_servers"]
        _fill(self.query_one("#brokers", DataTable), broker_rows(state))
        _fill(self.query_one("#partitions", DataTable), partition_rows(state))
        self._offer(offered_faults(state))
        log = self.query_one("#events", RichLog)
        while self._events.lines:
            log.write(self._events.lines.popleft())

    def _offer(self, faults: list[Fault]) -> None:
        if faults == self._offered:
            return
        self._offered = faults
        offers = self.query_one("#faults", OptionList)
        highlighted = offers.highlighted
        offers.clear_options()
        offers.add_options([Option(fault_text(fault)) for fault in faults])
        offers.highlighted = min(highlighted or 0, len(faults) - 1) if faults else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Begin the fault that was pressed."""
        self.run_worker(self._begin_and_tell(self._offered[event.option_index]))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Begin the fault that was typed; what is wrong stays, to be mended."""
        try:
            fault = typed_fault(event.value)
        except ClusterError as error:
            self.notify(str(error), severity="error")
            return
        event.input.clear()
        self.run_worker(self._begin_and_tell(fault))

    async def _begin_and_tell(self, fault: Fault) -> None:
        """Begin a fault, and say so, or why not."""
        try:
            await self._faults.begin(fault)
        except ClusterError as error:
            self.notify(str(error), severity="error")
        else:
            self.notify(fault_text(fault))

    def action_type_a_fault(self) -> None:
        """Go to the line in which faults are typed."""
        self.query_one("#typed").focus()

    def action_end_all(self) -> None:
        """End every fault."""
        self._faults.end_all()
        self.notify("all faults were ended")


def broker_rows(state: State) -> list[Row]:
    """Return a row for each broker, and one for each purgatory of it that has done anything."""
    rows: list[Row] = []
    for broker in state["brokers"]:
        name = f"{broker['id']}  {host_and_port(broker['host'], broker['port'])}"
        alive = "yes" if broker["alive"] else "DEAD"
        rows.append((name, alive, str(broker["connections"]), "", "", "", ""))
        for purgatory in broker["purgatories"]:
            outcomes = purgatory["outcomes"]
            if not purgatory["pending"] and not any(outcomes.values()):
                continue
            rows.append(
                (
                    f"   {purgatory['name']}",
                    "",
                    "",
                    str(purgatory["pending"]),
                    str(purgatory["oldest_ms"]) if purgatory["pending"] else "",
                    str(outcomes["completed"] + outcomes["immediate"]),
                    str(outcomes["expired"]),
                )
            )
    return rows


def partition_rows(state: State) -> list[Row]:
    """Return a row for each partition of the users' topics."""
    rows: list[Row] = []
    for topic in state["topics"]:
        if topic["internal"]:
            continue
        for one in topic["partitions"]:
            out = [broker for broker in one["replicas"] if broker not in one["isr"]]
            ends = " ".join(f"{broker}:{end}" for broker, end in one["log_end_offsets"].items())
            rows.append(
                (
                    f"{topic['name']}-{one['partition']}",
                    "none" if one["leader"] < 0 else str(one["leader"]),
                    str(one["leader_epoch"]),
                    ",".join(map(str, one["isr"])),
                    ",".join(map(str, out)),
                    "" if one["high_watermark"] is None else str(one["high_watermark"]),
                    ends,
                )
            )
    return rows


def _fill(table: DataTable[str], rows: list[Row]) -> None:
    table.clear()
    for row in rows:
        table.add_row(*row)
