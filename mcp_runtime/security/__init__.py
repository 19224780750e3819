"""Who may do what, and how much of it.

access      the one place that decides who may do what
principals  users and tokens as `access` asks them: made of the rows, and compared with them
limits      how much one principal may do: calls, slots, bytes, time, counted in memory; no Django
origins     which hosts are the hall's, and which pages may ask it

Calls, agents, the gateway, http1, control and interfaces use this room, and nobody decides once more what it decides.
It uses only `protocol`.
"""
