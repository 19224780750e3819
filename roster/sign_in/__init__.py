"""Sign-in of clients: the hall as the authorization server of its gateway (OAuth 2.1, docs/sign-in.md).

urls            the addresses
authorization   the page on which a person allows a client, and the code that it gets
consent         the form of this page: what the client may use, and until when
token_views     access tokens for codes and refresh tokens, and their revocation
registration    clients that introduce themselves (RFC 7591)
published       clients that publish their description (CIMD)
metadata        what clients read first (RFC 8414)
validator       what the OAuth library asks: which code, token and client is valid
protocol        how it reads requests and makes tokens
redirects       where a browser may be sent back
answers         answers to programs, and bounds of what they send

The OAuth library is heavy, so only `authorization` and `token_views` load it, at the first request.
"""
