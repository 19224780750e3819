"""The roster: what the hall knows, as rows, and how people and programs reach it over HTTP and on the command line.

models, migrations     the rows; imported everywhere, and they import nothing of the rest
api                    REST                    admin, admin_site, templates, static   the screens
management             commands                stdio                the relay of `manage.py mcp_stdio`
monitoring             /healthz, /readyz, /metrics
tokens, calls, presets, agent_config, diagnosis, snippets   what several of these share
access_signals, checks, middleware, database, json_field          parts of Django that are ours

`mcp_runtime` imports `roster.models` and nothing else. What the runtime is asked to do goes through
`mcp_runtime.control`.
"""
