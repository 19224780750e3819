"""Who may do what, and how much of it.

access      the only place that decides who may do what
principals  a principal for a user or a token, read from the rows and compared with them
limits      how much one principal may do: calls, slots, bytes, time, counted in memory; no Django
origins     the hosts of the hall, and the pages that may send requests to it

Calls, agents, the gateway, http1, control and interfaces use this package. They do not repeat its decisions. It uses
only `protocol` and `rows`.
"""
