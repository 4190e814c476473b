"""The hot parts of the timer in Cython. They are missing where no C compiler was at hand."""
