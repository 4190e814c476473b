"""A page that shows purgatories at work: live, from a trace, or a wheel alone.

`trace_columns` reads a trace, `timeline` puts its events in order, `state` folds them, and `run`
has the state at any moment, with the `event_log`, the `request_traces` and the `bookmarks`.
`replay_server` serves that, `page_server` the page itself; `page/` has its HTML and JavaScript.
Live, a cluster serves the same events (`purgatory.cluster.control`): docs/view.md lists them.
"""
