"""The hall as a client of the authorization servers of its members (OAuth 2.1, as MCP uses it).

challenges    what a server says in `WWW-Authenticate`
discovery     finds the authorization server of a member, and refuses what does not fit
clients       who the hall is there: known in advance, by a published document, or registered
assertions    proofs with a private key
providers     the identity providers of companies, as they describe themselves
proof_keys    keys to which tokens are bound, and a proof for each request (DPoP)
identity_assertions   what an issuer that a server trusts says about a person or a service
grants        the address for the person, the checks of the answer, and the requests of tokens

And two modules about an issuer that the operator chose, for single sign-on and for the gateway:

issuers        asks it for its documents and keys
signed_tokens  checks the tokens that it signed

Nothing here knows Django or rows. `members.credentials` keeps what comes out of it. Every request goes through
`client.outside`.
"""
