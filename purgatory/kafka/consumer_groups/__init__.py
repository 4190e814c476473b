"""Consumer groups of KIP-848: the coordinator assigns, members reconcile, each at its own pace."""
