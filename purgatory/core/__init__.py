"""Operations, watch lists, the purgatory, its reapers, an event loop's purgatory, and closing.

What is public here is imported from `purgatory`.
"""
