"""The roster: the rows that the hall stores, and their access for people and programs by HTTP and command line.

models, migrations     the rows; everything imports them, and they import nothing else from here
api                    REST                    admin, admin_site, templates, static   the screens
management             commands                stdio                the relay of `guildhall mcp_stdio`
monitoring             /healthz, /readyz, /metrics
tokens, calls, presets, agent_config, diagnosis, snippets   shared by several of these
roles                  the roles of users, and who may change which user
audit                  what the audit log learns from Django, and who may read what
invitations, invitation_page   links with which people make their own accounts
addresses, masked_log  the addresses of the hall, and logs without the secrets of these links
access_signals, checks, middleware, database, json_field    extensions of Django

`mcp_runtime` imports `roster.models` and nothing else from here. All requests to the runtime go through
`mcp_runtime.control`.
"""
