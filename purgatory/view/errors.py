"""What is wrong with what the view was given."""


class ViewError(ValueError):
    """A trace that can't be shown, or a question that makes no sense. The text says what would be
    right."""
