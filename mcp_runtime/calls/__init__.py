"""Tool calls as rows: create, claim, run and end them.

transitions          queue, finish and cancel calls; with `statements` the only writer of a call's status
statements           the SQL that every call needs
dispatcher           the runtime's thread that claims queued calls and calls the members; its parts are
                     queue_watch (when to look at the queue), slots, waiting_for_members, running and outcomes
waiting              wait for the end of a call
statistics           rollups of the calls that ended

The gateway, the agents, `control` and the runtime use this package. The web and the commands use only values of it.
"""
