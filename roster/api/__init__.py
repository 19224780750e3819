"""REST under /api/: parse, call `mcp_runtime.control`, present. Nothing here is open to anonymous users.

members, tools, calls, tokens, agent_config, agents, statistics   serializers and views of one noun each
meta                       index, OpenAPI schema, and the answer for unknown URLs
base                       shared by all views: JSON, pages, query parameters
requests, permissions, authentication   the contents of a request, its rights, its user
errors                     errors as HTTP responses
urls                       the URLs

The admin uses `requests`, and `roster.monitoring` has a view like those here. Nobody else imports this package. A new
field of a member, a call or a token goes into the serializer in the module of that noun. A limit of tokens goes only
into `Token.LIMITS`, which REST reads.
"""
