"""Single sign-on: people log in to the admin at a provider of OpenID Connect (docs/single-sign-on.md)."""
