"""The handlers of all methods, for the roster as one server and for single members.

    routing                 chooses the handler of a method; has the handlers that need no member
    introductions           the results of initialize and server/discover
    search                  calls of the tools that find and call all others
    tools                   tools/call, at every path; each call goes into the call log
    roster                  methods of the roster as one server
    member                  methods at a member's own path, which go to that member
    params                  checks the params of requests
    answers                 creates responses, and rewrites responses of members
    links                   rewrites the URIs of resources in results

To add a method, add a line to `routing`. CONTRIBUTING lists the other places.
`server` creates these objects. `responder` uses `routing`. `legacy` and `modern` use `introductions` and `params`.
"""
