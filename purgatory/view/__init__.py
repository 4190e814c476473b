"""A page on which purgatories are seen at work: live, from a trace, or a wheel alone."""
