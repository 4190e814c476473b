"""Consumer groups: who belongs to them, what they have committed."""
