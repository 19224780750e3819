"""The table of attacks: who attacks, and which promise must hold."""

from __future__ import annotations

from tests.attack import (
    folder_attacks,
    http_attacks,
    load_attacks,
    member_attacks,
    principal_attacks,
    rest_attacks,
)
from tests.attack.tally import Attack

TOKEN, NOBODY, MEMBER, FOLDER = "a token", "anybody", "a member", "a manifest's author"

ATTACKS = {
    attack.name: attack
    for attack in [
        Attack("smuggling-gateway", TOKEN, "one response for one request", http_attacks.smuggling_at_the_gateway),
        Attack("smuggling-web", TOKEN, "one response for one request", http_attacks.smuggling_at_the_web),
        Attack("generated-requests", TOKEN, "no 5xx beside hostile members", rest_attacks.generated_requests),
        Attack("secrets-never-mix", TOKEN, "each client gets its own secret", member_attacks.secrets_never_mix),
        Attack("forged-answers", MEMBER, "one response with the asked id", member_attacks.forged_answers),
        Attack("late-second-answers", MEMBER, "responses stay with their call", member_attacks.late_second_answers),
        Attack("cancelled-calls", TOKEN, "healthy calls succeed", member_attacks.cancelled_beside_healthy),
        Attack("stdio-broadcast", MEMBER, "notifications stay with their client", member_attacks.stdio_broadcast),
        Attack("hostile-schemas", MEMBER, "every response is in time", member_attacks.hostile_schemas),
        Attack("hostile-words", MEMBER, "lists are served to everybody", member_attacks.hostile_words),
        Attack("fetches-and-redirects", MEMBER, "the hall fetches no address", member_attacks.fetches_and_redirects),
        Attack("forged-log-lines", MEMBER, "members forge no log line", member_attacks.forged_log_lines),
        Attack("near-names", MEMBER, "a name belongs to one tool", principal_attacks.near_names),
        Attack("environment", MEMBER, "argv only, no secrets", principal_attacks.environment_of_members),
        Attack("ids-of-others", TOKEN, "404 and no details", principal_attacks.ids_of_others),
        Attack("request-states", TOKEN, "valid for their own client", principal_attacks.request_states_of_others),
        Attack("tasks", TOKEN, "valid for their own client", principal_attacks.tasks_of_others),
        Attack("idempotency-keys", TOKEN, "keys belong to one token", principal_attacks.idempotency_across_scopes),
        Attack("no-token", NOBODY, "every route refuses", principal_attacks.routes_without_a_token),
        Attack("headers-to-members", TOKEN, "no header is passed on", principal_attacks.headers_to_members),
        Attack("ambiguous-json", TOKEN, "only validated JSON is sent", principal_attacks.ambiguous_json),
        Attack("lying-headers", TOKEN, "the body decides", principal_attacks.lying_headers),
        Attack("rebinding", NOBODY, "foreign Host and Origin are refused", principal_attacks.rebinding),
        Attack("paths-outside", TOKEN, "no file of the hall is served", principal_attacks.paths_outside),
        Attack("manifests", FOLDER, "inner addresses are refused", folder_attacks.manifests_that_reach_out),
        Attack("links-and-secrets", FOLDER, "links and files stay inside", folder_attacks.links_and_secrets),
        Attack("files", NOBODY, "other users read nothing", folder_attacks.files_of_the_hall),
        Attack("half-sent-requests", NOBODY, "gateway and REST respond", load_attacks.half_sent_requests),
        Attack("silent-connections", NOBODY, "gateway and REST respond", load_attacks.silent_connections),
        Attack("slow-readers", TOKEN, "gateway and REST respond", load_attacks.slow_readers_and_writers),
        Attack("unfinished-bodies", TOKEN, "memory is bounded", load_attacks.unfinished_bodies),
        Attack("costly-bodies", TOKEN, "the event loop continues", load_attacks.costly_bodies),
        Attack("unread-streams", TOKEN, "memory is bounded", load_attacks.unread_streams),
        Attack("unread-listeners", TOKEN, "memory is bounded", load_attacks.unread_listeners),
        Attack("giant-answers", MEMBER, "memory is bounded", load_attacks.giant_answers),
        Attack("hanging-calls", TOKEN, "others have slots", load_attacks.hanging_calls),
    ]
}
