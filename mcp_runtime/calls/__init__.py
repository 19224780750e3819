"""Tool calls as rows: queued from any source, claimed, made, and written down.

invocations   queue, finish, cancel; with `statements` the only writer of a call's status
statements    the SQL that each call costs
dispatcher    the runtime's thread that claims what is due and calls the members; its parts are
              queue_watch (when it looks), slots, patience (with members that are down), running, ends
waiting       whoever waits for a call to end
statistics    rollups of the calls that ended

The gateway, agents, control and the runtime use this room; the web and commands take only values from it.
"""
