"""Theory and simulation side by side: closed forms of queueing theory, and what is simulated.

    from purgatory.theory.experiments import EXPERIMENTS
    from purgatory.theory.comparison import compare

    for row in compare(EXPERIMENTS[0], seeds=5, duration_ms=10_000):
        print(row.x, row.theory, row.simulated, row.half_width, row.covers)

`laws` has the closed forms, `experiments` the scenarios that meet their assumptions, `comparison`
the estimates over independent seeds with their confidence. `docs/theory.md` derives all of it.
"""
