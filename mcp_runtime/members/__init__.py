"""Guild members: from a folder with a manifest to a process that is watched, connected and restarted.

manifest, discovery       guild-member.json, and the rows that are made of all of them
process, output, ports    one process group, what it writes, and its port; no Django
logs                      what it wrote, read back
status                    the only writer of a member's status
lifecycle, starting, readiness, start_limits, announcements    start, stop and refresh one member
tools                     a tools/list as rows
live                      who has a process or a connection now
supervisor, restarts, availability, silence, signs_of_life     when that is done

Calls, agents, the gateway, control and the runtime use this room; the web and commands only manifests and logs.
"""
