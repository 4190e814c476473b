"""Methods by which a test looks at the requests of clients, and answers them.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.cluster.faulty_responses import ServedApi
from purgatory.cluster.steering.request_hooks import OnRequest, RequestHook, RequestHooks
from purgatory.cluster.steering.seen_requests import RequestLog, SeenRequest, checked_filter
from purgatory.cluster.steering.waits import ClusterWaits


class RequestMethods:
    """The methods of a cluster or a proxy whose clients' requests are kept.

    ``wait_for`` has the waits.
    """

    apis: Mapping[int, ServedApi]
    request_log: RequestLog
    hooks: RequestHooks
    wait_for: ClusterWaits

    def requests(
        self,
        *,
        api: str | None = None,
        client_id: str | None = None,
        topic: str | None = None,
        broker: int | None = None,
    ) -> list[SeenRequest]:
        """Return the latest requests of clients, oldest first: at most 5,000, of 16 MiB.

        Args:
            api: Kafka's name ("Produce") or the trace's ("produce"); None: any.
            client_id, topic, broker: who sent it, what it names, where it came; None: any.

        Raises:
            ClusterError: no API has that name.
        """
        return self.request_log.matching(checked_filter(self.apis, api, client_id, topic, broker))

    def clear_requests(self) -> None:
        """Forget the requests so far."""
        self.request_log.clear()

    def on_request(
        self,
        function: OnRequest,
        *,
        api: str | None = None,
        client_id: str | None = None,
        topic: str | None = None,
        broker: int | None = None,
        count: int | None = None,
    ) -> RequestHook:
        """Have a function see requests before the broker, and answer, delay, or pass them on.

        Args:
            function: takes a `SeenRequest`; it may be a coroutine function. None passes the request
                on; a `Delay` does so later; an answer, of `SeenRequest.answer_with` or `refusal`,
                or a mapping of its fields, is sent in place of the broker's.
            api, client_id, topic, broker: as for ``requests``.
            count: the most requests that it is called with; None: any number.

        Raises:
            ClusterError: an argument is invalid.
        """
        chosen = checked_filter(self.apis, api, client_id, topic, broker)
        return self.hooks.add(function, chosen, count)
