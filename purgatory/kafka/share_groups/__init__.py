"""Share groups (KIP-932): records that a group's members take one by one, and acknowledge."""
