"""The parts that are built where a C compiler is: see ``purgatory.core.backend``."""
