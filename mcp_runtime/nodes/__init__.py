"""Nodes: which of them owns which member, decided from values.

placement    the node that each member without an owner goes to
watch        the nodes that are gone, and the time after which a node must have ended its own members

Members, control and the runtime use this package. It reads no rows and no clock. Its callers pass what they read, so
tests can run the same decisions in a simulated hall.
"""
