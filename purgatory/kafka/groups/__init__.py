"""Groups: membership by the classic and the consumer protocol, and committed offsets."""
