"""REST under /api/: parse, call `mcp_runtime.control`, present. Nothing here is open to anonymous users.

members, tools, invocations, tokens, agent_config, sessions, statistics   one noun each: serializers beside views
meta                       the API about itself: index, OpenAPI schema, what is said where nothing is
base                       what views have in common: JSON, pages, query parameters
requests, permissions, authentication   what a request says, what it may do, who asks
errors                     what went wrong, as HTTP
urls                       which address leads where

The admin uses `requests`, and `roster.monitoring` is a view like those here. Nobody else imports this package. A new
field of a member, a call or a token goes into the serializer in the module of that noun; a limit of tokens goes into
`ApiToken.LIMITS`, and is in REST by that.
"""
