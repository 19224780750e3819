"""Guild members: from a folder with a manifest to a process that is watched, connected and restarted.

manifest, discovery       guild-member.json, and the rows of all members
disk, folders             several nodes: what this machine's members folder decides, and the digests of its folders
handover, moves           several nodes: the members that this one takes, and those that it gives to others
process, output, ports    one process group, its output, and its port; no Django
logs                      reads a member's log
status                    the only writer of a member's status
lifecycle, starting, readiness, start_limits, announcements    start, stop and refresh one member
tools, search_tools       a member's tools as rows; the three tools that clients list in search mode
packages                  packages of npx and uvx, installed once from a lock before a start
sandboxes, usage          the policy for a member's sandbox, and the limits that the hall itself checks
live                      the members that have a process or a connection now
supervisor, restarts, availability, silence, signs_of_life     decide when to start and stop

Calls, agents, the gateway, control and the runtime use this package. The web and commands use only manifests, logs
and search_tools.
"""
