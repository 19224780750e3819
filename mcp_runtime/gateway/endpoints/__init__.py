"""What is answered, by whom: a method for the roster as one server, for one member, or for both.

    routing                 which method is answered where; what is answered here alone
    introductions           what initialize and server/discover say
    tools                   tools/call, at every path; each call goes into the call log
    roster                  what the roster answers as one server
    member                  what goes to one member, whose names stay as they are
    params                  what requests must have, and how keys are written
    answers                 answers made here, answers of members rewritten, errors in words
    links                   resources that results name

A new method is a line in `routing`; CONTRIBUTING says where else it goes.
`server` makes it. `responder` asks `routing`; `legacy` and `modern` use `introductions`, and names of `params`.
"""
