"""The error of the view."""


class ViewError(ValueError):
    """A trace that can't be shown, or an invalid request. The text has the valid values."""
