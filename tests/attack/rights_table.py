"""Access control: every route of the web and every method of the gateway, with the required right.

A route without a row fails the test, and so does a row without a route. The rows of the web:

    METHOD  route  required right  status with the right  status without it  [members tools nothing]

The required right is `public`, `known` (an active account, with or without a role), `none`, `superuser`, or
permissions, with `|` between alternatives and `&` within one. VIEW_CALL is any permission that shows calls in the
admin. CHANGES_OF_MEMBER, EDITS_OF_MEMBER, SECRETS_OF_MEMBER and DELETE_SECRET are a permission together with any that
shows the rows.
The ids in routes are rows of another user, who may use a reserved member. So only superusers may change this user and
the group of the member. The last three statuses are for tokens whose user has every permission: tokens for the member
of the route, for its tool, and for nothing that exists. Methods without a row return only what GET returns.

`OWN` has the routes that also open for one's own rows: calls, tokens, agents and presets of the user, and users and
groups that have no right which the editor lacks. The required right is the one for these.

`rights_page` makes docs/roles.md from these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

ADMIN = """
GET   /admin/lists/                                     known                                     200  -
GET   /admin/search/                                    known                                     200  -
POST  /admin/search/pins/<int:tool_id>/                 view_tool|invoke_tool                     302  404
GET   /admin/choices/<slug:offer>/                      add_token                                 200  403
GET   /admin/                                           known                                     200  -
GET   /admin/login/                                     public                                    200/302 -
GET   /oauth/authorize                                  add_token                                 400  403
POST  /oauth/authorize                                  add_token                                 400  403
POST  /admin/logout/                                    known                                     200  -
GET   /admin/password_change/                           known                                     200  -
POST  /admin/password_change/                           known                                     200  -
GET   /admin/password_change/done/                      known                                     200  -
GET   /admin/autocomplete/                              none                                      -    403
GET   /admin/jsi18n/                                    known                                     200  -
GET   /admin/r/<path:content_type_id>/<path:object_id>/ none                                      -    404
GET   /admin/^(?P<app_label>roster|auth)/$              known                                     200/404 -
GET   /admin/(?P<url>.*)$                               none                                      -    404

GET   /admin/roster/statuschange/                       view_statuschange|change_statuschange     200  403
GET   /admin/roster/statuschange/add/                   none                                      -    403
GET   /admin/roster/statuschange/<path:object_id>/history/ view_statuschange|change_statuschange  200  403
GET   /admin/roster/statuschange/<path:object_id>/delete/  none                                   -    403
GET   /admin/roster/statuschange/<path:object_id>/change/  view_statuschange|change_statuschange  200  403
POST  /admin/roster/statuschange/<path:object_id>/change/  none                                   -    403
GET   /admin/roster/statuschange/<path:object_id>/      known                                     302  -

GET   /admin/roster/portallocation/                     view_portallocation|change_portallocation 200  403
GET   /admin/roster/portallocation/add/                 none                                      -    403
GET   /admin/roster/portallocation/<path:object_id>/history/ view_portallocation|change_portallocation 200 403
GET   /admin/roster/portallocation/<path:object_id>/delete/  none                                 -    403
GET   /admin/roster/portallocation/<path:object_id>/change/  view_portallocation|change_portallocation 200 403
POST  /admin/roster/portallocation/<path:object_id>/change/  none                                 -    403
GET   /admin/roster/portallocation/<path:object_id>/    known                                     302  -

GET   /admin/roster/node/                               view_node|change_node                     200  403
GET   /admin/roster/node/add/                           none                                      -    403
GET   /admin/roster/node/<path:object_id>/history/      view_node|change_node                     200  403
GET   /admin/roster/node/<path:object_id>/delete/       none                                      -    403
GET   /admin/roster/node/<path:object_id>/change/       view_node|change_node                     200  403
POST  /admin/roster/node/<path:object_id>/change/       none                                      -    403
GET   /admin/roster/node/<path:object_id>/              known                                     302  -

GET   /admin/roster/call/statistics/                    view_guildmember|view_tool|view_call      200  403
GET   /admin/roster/call/export/<slug:form>/            view_call|change_call|invoke_tool         200  403
POST  /admin/roster/call/saved-filters/                 view_call|change_call|invoke_tool         302  403
POST  /admin/roster/call/saved-filters/<int:filter_id>/delete/ none                                -    403/404
GET   /admin/roster/call/compare/                       view_call|change_call                     200  404
GET   /admin/roster/call/<int:call_id>/part/            view_call|change_call                     200  404
GET   /admin/roster/call/<int:call_id>/file/<slug:file>/ view_call|change_call                    200  404
POST  /admin/roster/call/<int:call_id>/cancel/          VIEW_CALL&control_member                  302  403/404
POST  /admin/roster/call/<int:call_id>/replay/          VIEW_CALL&invoke_tool                     302  403/404
GET   /admin/roster/call/<int:call_id>/previous/        view_call|change_call                     302  404
GET   /admin/roster/call/<int:call_id>/log/             VIEW_CALL&view_guildmember                200  403/404
GET   /admin/roster/call/                               view_call|change_call|invoke_tool         200  403
GET   /admin/roster/call/add/                           none                                      -    403
GET   /admin/roster/call/<path:object_id>/history/      view_call|change_call                     200  404
GET   /admin/roster/call/<path:object_id>/delete/       none                                      -    403
GET   /admin/roster/call/<path:object_id>/change/       view_call|change_call                     200  404
POST  /admin/roster/call/<path:object_id>/change/       none                                      -    403/404
GET   /admin/roster/call/<path:object_id>/              known                                     302  -

GET   /admin/roster/guildmember/runtime/                known                                     200  -
POST  /admin/roster/guildmember/sync/                   control_member                            302  403
GET   /admin/roster/guildmember/<int:member_id>/groups/ change_guildmember                        200  403
POST  /admin/roster/guildmember/<int:member_id>/groups/ change_guildmember                        302  403
GET   /admin/roster/guildmember/<int:member_id>/move/   control_member                            200  403
POST  /admin/roster/guildmember/<int:member_id>/move/   control_member                            200  403
GET   /admin/roster/guildmember/<int:member_id>/changes/ CHANGES_OF_MEMBER                        200  403
POST  /admin/roster/guildmember/<int:member_id>/changes/ CHANGES_OF_MEMBER                        302  403
GET   /admin/roster/guildmember/proposals/              approve_member                            200  403
GET   /admin/roster/guildmember/proposals/approved/     approve_member                            200  403
GET   /admin/roster/guildmember/trash/                  approve_member                            200  403
POST  /admin/roster/guildmember/trash/                  approve_member                            302  403
GET   /admin/roster/guildmember/<int:member_id>/remove/ approve_member                            200  403
POST  /admin/roster/guildmember/<int:member_id>/remove/ approve_member                            302  403
POST  /admin/roster/guildmember/proposals/              approve_member                            302  403
GET   /admin/roster/guildmember/<int:member_id>/edit/   EDITS_OF_MEMBER                           200  403
POST  /admin/roster/guildmember/<int:member_id>/edit/   EDITS_OF_MEMBER                           200  403
GET   /admin/roster/guildmember/<int:member_id>/edits/  EDITS_OF_MEMBER                           200  403
GET   /admin/roster/guildmember/<int:member_id>/edits/list/ EDITS_OF_MEMBER                       200  403
POST  /admin/roster/guildmember/<int:member_id>/edits/<slug:verb>/ EDITS_OF_MEMBER                404  403
POST  /admin/roster/guildmember/<int:member_id>/relock/ EDITS_OF_MEMBER                           302  403
GET   /admin/roster/guildmember/<int:member_id>/secrets/ SECRETS_OF_MEMBER                        200  403
POST  /admin/roster/guildmember/<int:member_id>/secrets/ SECRETS_OF_MEMBER                        302  403
GET   /admin/roster/guildmember/<int:member_id>/sign-in/ control_member                           200  403
POST  /admin/roster/guildmember/<int:member_id>/sign-in/ control_member                           200  403
POST  /admin/roster/guildmember/<int:member_id>/sign-out/ control_member                          302  403
GET   /admin/roster/guildmember/<int:member_id>/own-sign-in/ invoke_tool                          200  403
POST  /admin/roster/guildmember/<int:member_id>/own-sign-in/ invoke_tool                          200  403
POST  /admin/roster/guildmember/<int:member_id>/own-sign-out/ invoke_tool                         302  403
POST  /admin/roster/guildmember/<int:member_id>/do/<slug:verb>/ control_member                  302  403
GET   /admin/roster/guildmember/<int:member_id>/parts/<slug:part>/ view_guildmember|change_guildmember 200 403
GET   /admin/roster/guildmember/<int:member_id>/log/    view_guildmember|change_guildmember       200  403
GET   /admin/roster/guildmember/<int:member_id>/log/file/ view_guildmember|change_guildmember     200  403
GET   /admin/roster/guildmember/<int:member_id>/prompt/               view_tool|invoke_tool  200  403
POST  /admin/roster/guildmember/<int:member_id>/prompt/               invoke_tool            200  403
GET   /admin/roster/guildmember/<int:member_id>/resource/             view_tool|invoke_tool  200  403
POST  /admin/roster/guildmember/<int:member_id>/resource/             invoke_tool            200  403
GET   /admin/roster/guildmember/<int:member_id>/template/             view_tool|invoke_tool  200  403
POST  /admin/roster/guildmember/<int:member_id>/template/             invoke_tool            200  403
POST  /admin/roster/guildmember/<int:member_id>/prompt/file/          invoke_tool            404  403
POST  /admin/roster/guildmember/<int:member_id>/resource/file/        invoke_tool            302  403
POST  /admin/roster/guildmember/<int:member_id>/resource/watch/       invoke_tool            200  403
GET   /admin/roster/guildmember/<int:member_id>/resource/updates/     invoke_tool            200  403
POST  /admin/roster/guildmember/<int:member_id>/complete/             invoke_tool            200  403
POST  /admin/roster/guildmember/<int:member_id>/extras/<slug:verb>/   control_member         404  403
GET   /admin/roster/guildmember/cards/                  view_guildmember|change_guildmember       200  403
GET   /admin/roster/guildmember/                        view_guildmember|change_guildmember       200  403
GET   /admin/roster/guildmember/add/                    none                                      -    403
GET   /admin/roster/guildmember/<path:object_id>/history/ view_guildmember|change_guildmember     200  403
GET   /admin/roster/guildmember/<path:object_id>/delete/ none                                     -    403
GET   /admin/roster/guildmember/<path:object_id>/change/ view_guildmember|change_guildmember      200  403
POST  /admin/roster/guildmember/<path:object_id>/change/ none                                     -    403
GET   /admin/roster/guildmember/<path:object_id>/       known                                     302  -

GET   /admin/roster/agent/new/                          invoke_tool                               200  403
POST  /admin/roster/agent/new/                          invoke_tool                               200  403
POST  /admin/roster/agent/<int:agent_id>/send/          superuser                                 302  403/404
POST  /admin/roster/agent/<int:agent_id>/stop/          superuser                                 302  403/404
GET   /admin/roster/agent/<int:agent_id>/parts/<slug:part>/ view_agent                            200  404
GET   /admin/roster/agent/<int:agent_id>/file/<int:event_id>/<slug:file>/ view_agent              200  404
GET   /admin/roster/agent/                              view_agent|change_agent|invoke_tool       200  403
GET   /admin/roster/agent/add/                          none                                      -    403
GET   /admin/roster/agent/<path:object_id>/history/     view_agent                                200  302
GET   /admin/roster/agent/<path:object_id>/delete/      none                                      -    403
GET   /admin/roster/agent/<path:object_id>/change/      view_agent                                200  302/403
POST  /admin/roster/agent/<path:object_id>/change/      none                                      -    302/403
GET   /admin/roster/agent/<path:object_id>/             known                                     302  -

POST  /admin/roster/token/<int:token_id>/revoke/        superuser                                 302  403
GET   /admin/roster/token/<int:token_id>/view/          superuser                                 200  403
POST  /admin/roster/token/<int:token_id>/view/          superuser                                 302  403
GET   /admin/roster/token/<int:token_id>/parts/<slug:part>/    superuser                          200  403
GET   /admin/roster/token/                              view_token|change_token                   200  403
GET   /admin/roster/token/add/                          add_token                                 200  403
POST  /admin/roster/token/add/                          add_token                                 200  403
GET   /admin/roster/token/<path:object_id>/history/     superuser                                 200  302
GET   /admin/roster/token/<path:object_id>/delete/      superuser                                 200  302/403
POST  /admin/roster/token/<path:object_id>/delete/      superuser                                 200/302 302/403
GET   /admin/roster/token/<path:object_id>/change/      superuser                                 200  302/403
POST  /admin/roster/token/<path:object_id>/change/      none                                      -    302/403
GET   /admin/roster/token/<path:object_id>/             known                                     302  -

POST  /admin/roster/tool/<int:tool_id>/enable/          control_member                            302  403
POST  /admin/roster/tool/<int:tool_id>/disable/         control_member                            302  403
GET   /admin/roster/tool/<int:tool_id>/call/            invoke_tool                               200  403
POST  /admin/roster/tool/<int:tool_id>/call/            invoke_tool                               200/302 403
GET   /admin/roster/tool/<int:tool_id>/call/<int:call_id>/ VIEW_CALL&invoke_tool                     200  403/404
POST  /admin/roster/tool/<int:tool_id>/snippets/        invoke_tool                               200  403
GET   /admin/roster/tool/<int:tool_id>/presets/         invoke_tool                               200  403
POST  /admin/roster/tool/<int:tool_id>/presets/         invoke_tool                               302  403
POST  /admin/roster/tool/<int:tool_id>/presets/<int:preset_id>/delete/ none                             -    403/404
GET   /admin/roster/tool/                               view_tool|change_tool                     200  403
GET   /admin/roster/tool/add/                           none                                      -    403
GET   /admin/roster/tool/<path:object_id>/history/      view_tool|change_tool                     200  403
GET   /admin/roster/tool/<path:object_id>/delete/       none                                      -    403
GET   /admin/roster/tool/<path:object_id>/change/       view_tool|change_tool                     200  403
POST  /admin/roster/tool/<path:object_id>/change/       none                                      -    403
GET   /admin/roster/tool/<path:object_id>/              known                                     302  -

GET   /admin/roster/toolset/                            view_toolset|change_toolset               200  403
GET   /admin/roster/toolset/add/                        add_toolset                               200  403
POST  /admin/roster/toolset/add/                        add_toolset                               200  403
GET   /admin/roster/toolset/<int:object_id>/view/          view_toolset|change_toolset               200  403
POST  /admin/roster/toolset/<int:object_id>/view/          change_toolset                            302  403
GET   /admin/roster/toolset/<path:object_id>/history/   view_toolset|change_toolset               200  403
GET   /admin/roster/toolset/<path:object_id>/delete/    delete_toolset                            200  403
POST  /admin/roster/toolset/<path:object_id>/delete/    delete_toolset                            200/302 403
GET   /admin/roster/toolset/<path:object_id>/change/    view_toolset|change_toolset               200  403
POST  /admin/roster/toolset/<path:object_id>/change/    change_toolset                            200/302 403
GET   /admin/roster/toolset/<path:object_id>/           known                                     302  -
GET   /admin/roster/secret/<int:secret_id>/old-value/   view_secret|change_secret                 200  403
GET   /admin/roster/secret/                             view_secret|change_secret                 200  403
GET   /admin/roster/secret/add/                         add_secret                                200  403
POST  /admin/roster/secret/add/                         add_secret                                200  403
GET   /admin/roster/secret/<path:object_id>/history/    view_secret|change_secret                 200  403
GET   /admin/roster/secret/<path:object_id>/delete/     delete_secret                             200  403
POST  /admin/roster/secret/<path:object_id>/delete/     delete_secret                             200/302 403
GET   /admin/roster/secret/<path:object_id>/change/     view_secret|change_secret                 200  403
POST  /admin/roster/secret/<path:object_id>/change/     change_secret                             302  403
GET   /admin/roster/secret/<path:object_id>/            known                                     302  -

GET   /admin/roster/invitation/                         add_user                                  200  403
GET   /admin/roster/invitation/invite/                  add_user                                  200  403
POST  /admin/roster/invitation/invite/                  add_user                                  200  403

GET   /admin/roster/auditentry/                         view_auditentry                           200  403
GET   /admin/roster/auditentry/add/                     none                                      -    403
GET   /admin/roster/auditentry/<path:object_id>/history/ view_auditentry                          200  403
GET   /admin/roster/auditentry/<path:object_id>/delete/ none                                      -    403
POST  /admin/roster/auditentry/<path:object_id>/delete/ none                                      -    403
GET   /admin/roster/auditentry/<path:object_id>/change/ view_auditentry                           200  403
POST  /admin/roster/auditentry/<path:object_id>/change/ none                                      -    403
GET   /admin/roster/auditentry/<path:object_id>/        known                                     302  -

GET   /admin/auth/group/                                view_group|change_group                   200  403
GET   /admin/auth/group/add/                            add_group                                 200  403
GET   /admin/auth/group/<path:object_id>/history/       view_group|change_group                   200  403
GET   /admin/auth/group/<path:object_id>/delete/        superuser                                 200  403
GET   /admin/auth/group/<path:object_id>/change/        view_group|change_group                   200  403
GET   /admin/auth/group/<path:object_id>/               known                                     302  -
GET   /admin/auth/user/<id>/password/                   superuser                                 200  403
GET   /admin/auth/user/                                 view_user|change_user                     200  403
GET   /admin/auth/user/add/                             add_user&change_user                      200  403
POST  /admin/auth/user/add/                             add_user&change_user                      200  403
GET   /admin/auth/user/<path:object_id>/history/        view_user|change_user                     200  403
GET   /admin/auth/user/<path:object_id>/delete/         superuser                                 200  403
GET   /admin/auth/user/<path:object_id>/change/         view_user|change_user                     200  403
POST  /admin/auth/user/<path:object_id>/change/         superuser                                 200  403
GET   /admin/auth/user/<path:object_id>/                known                                     302  -
"""

API = """
GET   /                                           public                                     302 -
GET   /invitations/<str:link_secret>/             public                                     200 -
POST  /invitations/<str:link_secret>/             public                                     200 -
GET   /login-links/<str:link_secret>/             public                                     410 -
POST  /login-links/<str:link_secret>/             public                                     410 -
GET   /single-sign-on/                            public                                     404 -
GET   /single-sign-on/callback/                   public                                     404 -
GET   /.well-known/oauth-authorization-server     public                                     200 -
GET   /.well-known/oauth-authorization-server/<path:issuer_path> public                      404 -
GET   /oauth/token                                public                                     405 -
POST  /oauth/token                                public                                     400/401 -
GET   /oauth/revoke                               public                                     405 -
POST  /oauth/revoke                               public                                     400/401 -
GET   /oauth/register                             public                                     405 -
POST  /oauth/register                             public                                     400/429 -
GET   /members/sign-in/                           public                                     302 -
GET   /members/<int:member_id>/own-sign-in/       public                                     302 -
GET   /members/sign-in/client.json                public                                     404 -
GET   /healthz                                    public                                     200 -
GET   /readyz                                     public                                     503 -
GET   /metrics                                          view_guildmember|view_tool|view_call      200  403 200 403 200
GET   /api/                                       known                                      200 -    200 200 200
GET   /api/roster/                                known                                      200 -    200 200 200
GET   /api/members/                               known                                      200 -    200 200 200
POST  /api/members/                               approve_member                             201 403  403 403 403
GET   /api/members/<str:name>/                    known                                      200 -    200 200 404
POST  /api/members/<str:name>/start/              control_member                             202 403  202 403 404
POST  /api/members/<str:name>/stop/               control_member                             202 403  202 403 404
POST  /api/members/<str:name>/restart/            control_member                             202 403  202 403 404
POST  /api/members/<str:name>/refresh/            control_member                             409 403  409 403 404
POST  /api/members/<str:name>/enable/             control_member                             202 403  202 403 404
POST  /api/members/<str:name>/disable/            control_member                             202 403  202 403 404
POST  /api/members/<str:name>/sign-in/            control_member                             409 403  409 403 404
POST  /api/members/<str:name>/sign-out/           control_member                             409 403  409 403 404
GET   /api/members/<str:name>/own-sign-in/        invoke_tool                                409 403  409 404 404
POST  /api/members/<str:name>/own-sign-in/        invoke_tool                                409 403  409 404 404
POST  /api/members/<str:name>/own-sign-out/       invoke_tool                                409 403  409 404 404
POST  /api/members/<str:name>/move/               control_member                             409 403  409 403 404
GET   /api/members/<str:name>/groups/             change_guildmember                         200 403  403 403 403
PUT   /api/members/<str:name>/groups/             change_guildmember                         200 403  403 403 403
GET   /api/members/<str:name>/logs/               view_guildmember                           200 403  200 403 404
GET   /api/members/<str:name>/status-changes/     view_guildmember                           200 403  200 403 404
GET   /api/members/<str:name>/statistics/         view_guildmember|view_tool|view_call       200 403  200 403 404
GET   /api/members/<str:name>/contracts/          approve_contract                           200 403  403 403 404
GET   /api/members/<str:name>/contracts/review/   approve_contract                           400 403  403 403 404
POST  /api/members/<str:name>/contracts/approve/  approve_contract                           200 403  403 403 404
GET   /api/members/<str:name>/tools/              known                                      200 -    200 200 404
GET   /api/members/<str:name>/tools/<tool_name:tool>/ invoke_tool|control_member             200 404  200 200 404
GET   /api/members/<str:name>/tools/<tool_name:tool>/invoke/ none                            -   404  404 404 404
POST  /api/members/<str:name>/tools/<tool_name:tool>/invoke/ invoke_tool                     202 403  202 202 403
POST  /api/members/<str:name>/tools/<tool_name:tool>/enable/ control_member                  200 403  200 403 404
POST  /api/members/<str:name>/tools/<tool_name:tool>/disable/ control_member                 200 403  200 403 404
GET   /api/members/<str:name>/prompts/                               known           200 -  200 200 404
POST  /api/members/<str:name>/prompts/get/                           invoke_tool     503 403  503 403 404
POST  /api/members/<str:name>/prompts/complete/                      invoke_tool     503 403  503 403 404
POST  /api/members/<str:name>/prompts/enable/                        control_member  200 403  200 403 404
POST  /api/members/<str:name>/prompts/disable/                       control_member  200 403  200 403 404
GET   /api/members/<str:name>/resources/                             known           200 -  200 200 404
POST  /api/members/<str:name>/resources/read/                        invoke_tool     503 403  503 403 404
POST  /api/members/<str:name>/resources/watch/                       invoke_tool     503 403  503 403 404
POST  /api/members/<str:name>/resources/enable/                      control_member  200 403  200 403 404
POST  /api/members/<str:name>/resources/disable/                     control_member  200 403  200 403 404
GET   /api/members/<str:name>/resource-templates/                    known           200 -  200 200 404
POST  /api/members/<str:name>/resource-templates/complete/           invoke_tool     503 403  503 403 404
POST  /api/members/<str:name>/resource-templates/enable/             control_member  200 403  200 403 404
POST  /api/members/<str:name>/resource-templates/disable/            control_member  200 403  200 403 404
GET   /api/nodes/                                 view_node|change_node                      200 403  403 403 403
POST  /api/nodes/rebalance/                       control_member                             202 403  403 403 403
POST  /api/nodes/<str:node>/drain/                control_member                             202 403  403 403 403
POST  /api/nodes/<str:node>/undrain/              control_member                             202 403  403 403 403
POST  /api/nodes/<str:node>/remove/               control_member                             200 403  403 403 403
GET   /api/proposals/                             approve_member                             200 403  403 403 403
GET   /api/proposals/<str:proposal>/              approve_member                             200 403  403 403 403
DELETE /api/proposals/<str:proposal>/ approve_member 204 403 403 403 403
GET   /api/trash/                                 approve_member                             200 403  403 403 403
POST  /api/trash/<int:number>/restore/            approve_member                             202 403  403 403 403
DELETE /api/members/<str:name>/ approve_member 202 403 403 403 403
PATCH /api/members/<str:name>/ approve_member&view_guildmember 201 403 403 403 403
GET /api/members/<str:name>/newest-version/ approve_member&view_guildmember 409 403 403 403 403
POST /api/members/<str:name>/newest-version/ approve_member&view_guildmember 409 403 403 403 403
POST /api/members/<str:name>/newest-version/edit/ approve_member&view_guildmember 409 403 403 403 403
POST /api/members/<str:name>/relock/ approve_member&view_guildmember 409 403 403 403 403
GET /api/edits/ approve_member&view_guildmember 200 403 403 403 403
GET /api/edits/<int:edit>/ approve_member&view_guildmember 200 403 403 403 403
DELETE /api/edits/<int:edit>/ approve_member&view_guildmember 204 403 403 403 403
POST /api/edits/<int:edit>/approve/ approve_member&view_guildmember 202 403 403 403 403
POST /api/edits/<int:edit>/undo/ approve_member&view_guildmember 409 403 403 403 403
GET   /api/registry/                              approve_member                             409 403  403 403 403
POST  /api/proposals/<str:proposal>/approve/      approve_member                             409 403  403 403 403
GET   /api/secrets/                               view_secret|change_secret                  200 403  403 403 403
GET   /api/secrets/<str:secret>/                  view_secret|change_secret                  200 403  403 403 403
PUT   /api/secrets/<str:secret>/                  change_secret                              200 403  403 403 403
DELETE /api/secrets/<str:secret>/                 DELETE_SECRET 204 403 403 403 403
GET   /api/tool-sets/                             known                                      200 -    200 200 200
GET   /api/tool-sets/<str:tool_set>/              known                                      200 -    200 200 200
PUT   /api/tool-sets/<str:tool_set>/              change_toolset                             200 403  403 403 403
DELETE /api/tool-sets/<str:tool_set>/ delete_toolset 204 403 403 403 403
GET   /api/calls/                                 known                                      200 -    200 200 200
GET   /api/calls/export/                          known                                      200 -    200 200 200
GET   /api/calls/<int:pk>/                        view_call                                  200 404  404 404 404
GET   /api/calls/<int:pk>/logs/                   view_call&view_guildmember                 200 403/404 404 404 404
POST  /api/calls/<int:pk>/cancel/                 view_call&control_member                   409 403/404 404 404 404
GET   /api/tokens/                                known                                      200 -    200 200 200
POST  /api/tokens/                                add_token                                  201 403  201 201 201
GET   /api/tokens/<int:pk>/                       none                                       -   404  404 404 404
POST  /api/tokens/<int:pk>/revoke/                none                                       -   404  404 404 404
GET   /api/audit/                                 view_auditentry                            200  403 403 403 403
GET   /api/agent-config/                          known                                      200 -    200 200 200
POST  /api/agent-config/                          add_token                                  201 403  201 201 201
GET   /api/agents/                                invoke_tool                                200 403  200 200 200
POST  /api/agents/                                invoke_tool                                201 403  201 403 403
GET   /api/agents/<int:pk>/                       view_agent                                 200 404  404 404 404
POST  /api/agents/<int:pk>/messages/              superuser                                  202/503 403/404 404 404 404
GET   /api/agents/<int:pk>/events/                view_agent                                 200 404  404 404 404
POST  /api/agents/<int:pk>/stop/                  superuser                                  409 403/404 404 404 404
GET   /api/schema/                                known                                      200 -    200 200 200
GET   /api/docs/                                  known                                      200 -    200 200 200
GET   /api/(nowhere)                              none                                       -   404  404 404 404
"""

OWN = """
POST  /admin/roster/call/saved-filters/<int:filter_id>/delete/ view_call|change_call|invoke_tool     302  403
GET   /admin/roster/call/compare/                       known                                     200  -
GET   /admin/roster/call/<int:call_id>/part/            known                                     200  -
GET   /admin/roster/call/<int:call_id>/file/<slug:file>/ known                                    200  -
POST  /admin/roster/call/<int:call_id>/cancel/          known                                     302  -
POST  /admin/roster/call/<int:call_id>/replay/          invoke_tool                               302  403
GET   /admin/roster/call/<int:call_id>/previous/        known                                     302  -
GET   /admin/roster/call/<int:call_id>/log/             view_guildmember                          200  403
GET   /admin/roster/call/<path:object_id>/history/      known                                     200  -
GET   /admin/roster/call/<path:object_id>/change/       known                                     200  -
POST  /admin/roster/agent/<int:agent_id>/send/          invoke_tool                               302  403
POST  /admin/roster/agent/<int:agent_id>/stop/          invoke_tool                               302  403
GET   /admin/roster/agent/<int:agent_id>/parts/<slug:part>/ known                                 200  -
GET   /admin/roster/agent/<int:agent_id>/file/<int:event_id>/<slug:file>/ known                   200  -
GET   /admin/roster/agent/<path:object_id>/history/     known                                     200  -
GET   /admin/roster/agent/<path:object_id>/change/      known                                     200  -
POST  /admin/roster/token/<int:token_id>/revoke/        delete_token                              302  403
GET   /admin/roster/token/<int:token_id>/view/          view_token                                200  403
POST  /admin/roster/token/<int:token_id>/view/          view_token&delete_token                   302  403
GET   /admin/roster/token/<int:token_id>/parts/<slug:part>/ view_token                            200  403
GET   /admin/roster/token/<path:object_id>/history/     view_token                                200  403
GET   /admin/roster/token/<path:object_id>/delete/      delete_token                              200  403
POST  /admin/roster/token/<path:object_id>/delete/      delete_token                              200  403
GET   /admin/roster/token/<path:object_id>/change/      view_token                                200  403
GET   /admin/roster/tool/<int:tool_id>/call/<int:call_id>/ invoke_tool                            200  403
POST  /admin/roster/tool/<int:tool_id>/presets/<int:preset_id>/delete/ invoke_tool                302  403
GET   /admin/auth/group/<path:object_id>/delete/        delete_group                              200  403
GET   /admin/auth/user/<id>/password/                   change_user                               200  403
POST  /admin/auth/user/<path:object_id>/change/         change_user                               200  403
GET   /api/calls/<int:pk>/                              known                                     200  -
GET   /api/calls/<int:pk>/logs/                         view_guildmember                          200  403
POST  /api/calls/<int:pk>/cancel/                       known                                     409  -
GET   /api/tokens/<int:pk>/                             known                                     200  -
POST  /api/tokens/<int:pk>/revoke/                      known                                     200  -
GET   /api/agents/<int:pk>/                             known                                     200  -
POST  /api/agents/<int:pk>/messages/                    invoke_tool                               202/503 403
GET   /api/agents/<int:pk>/events/                      known                                     200  -
POST  /api/agents/<int:pk>/stop/                        invoke_tool                               409  403
"""

# The gateway: each address, its pattern, and the kinds of token that can use it.
GATEWAY_PATHS = """
/mcp                     /mcp                     full members tools empty nothing
/mcp/                    /mcp                     full members tools empty nothing
/mcp?members=notes       /mcp                     full members tools
/mcp?members=other       /mcp                     full
/mcp?members=hidden      /mcp
/mcp?members=nobody      /mcp
/mcp/notes               /mcp/<member>            full members tools
/mcp/other               /mcp/<member>            full
/mcp/hidden              /mcp/<member>
/mcp/nobody              /mcp/<member>
/agents/{agent}/mcp      /agents/<agent>/mcp
/agents/0/mcp            /agents/<agent>/mcp
/agents/x/mcp            /agents/<agent>/mcp
/sets/open/mcp           /sets/<tool_set>/mcp    full members tools empty nothing
/sets/reserved/mcp       /sets/<tool_set>/mcp
/sets/nobody/mcp         /sets/<tool_set>/mcp
"""

# The status of each verb without a session, for a token that can use the address. Only POST begins a session.
GATEWAY_VERBS = {"POST": 200, "GET": 405, "DELETE": 405}

# The tokens that get a result of each method, or whose notification reaches the member, in a session and without one,
# at /mcp and at the path of a member. `known`: every valid token. `may`: tokens that may use something. `tool`: tokens
# that may call the member's tool. `all`: tokens that may use the whole member. `none`: no token. With a `+` the first
# ones get a list, with the entries for the second ones. The last two rows stand for all unknown methods.
EVERY_OTHER, EVERY_OTHER_NOTICE = "example/unknown", "notifications/unknown"
GATEWAY = f"""
                                  at /mcp: session, without     at /mcp/<member>: session, without
ping                              known        none             known        none
initialize                        none         none             none         none
server/discover                   none         known            all          known
logging/setLevel                  known        none             known        none
tools/list                        known+tool   known+tool       known+tool   known+tool
tools/call                        tool         tool             tool         tool
prompts/list                      known+all    known+all        known+all    known+all
prompts/get                       all          all              all          all
resources/list                    known+all    known+all        known+all    known+all
resources/templates/list          known+all    known+all        known+all    known+all
resources/read                    all          all              all          all
resources/subscribe               all          none             all          none
resources/unsubscribe             all          none             all          none
completion/complete               all          all              all          all
subscriptions/listen              none         may              all          may
notifications/initialized         none         none             none         none
notifications/cancelled           none         none             none         none
notifications/roots/list_changed  tool         none             tool         none
{EVERY_OTHER}                     none         none             all          all
{EVERY_OTHER_NOTICE}              none         none             all          none
"""


class Rights(Protocol):
    """Who asks: `rights_world.Who`, or a column of `rights_page`."""

    permissions: frozenset[str]
    is_known: bool
    is_superuser: bool


WITH_A_VIEW = {
    "CHANGES_OF_MEMBER": "approve_contract&view_guildmember|approve_contract&change_guildmember",
    "EDITS_OF_MEMBER": "approve_member&view_guildmember|approve_member&change_guildmember",
    "SECRETS_OF_MEMBER": "change_secret&view_guildmember|change_secret&change_guildmember",
    "DELETE_SECRET": "delete_secret&view_secret|delete_secret&change_secret",
}


@dataclass(frozen=True)
class Row:
    """A line of ADMIN, API or OWN."""

    method: str
    route: str
    opened_by: str
    statuses_if_allowed: frozenset[int]
    statuses_if_denied: frozenset[int]
    narrowed: tuple[int, ...] = ()

    @classmethod
    def of(cls, line: str) -> Row:
        method, route, opened_by, allowed, denied, *narrowed = line.split()
        numbers = [frozenset(int(number) for number in word.split("/") if number != "-") for word in (allowed, denied)]
        return cls(method, route, opened_by, *numbers, tuple(map(int, narrowed)))

    @property
    def is_api(self) -> bool:
        return not self.route.startswith(("/admin/", "/oauth/authorize"))

    @property
    def alternatives(self) -> list[set[str]]:
        """Sets of permissions, each of which opens the route."""
        if self.opened_by in ("public", "known", "none", "superuser"):
            return []
        expression = self.opened_by
        expression = WITH_A_VIEW.get(expression, expression)
        if "VIEW_CALL" in expression:
            expression = "|".join(expression.replace("VIEW_CALL", f"{verb}_call") for verb in ("view", "change"))
        return [set(alternative.split("&")) for alternative in expression.split("|")]

    def opens_for(self, principal: Rights) -> bool:
        if self.opened_by == "public" or not principal.is_known:
            return self.opened_by == "public"
        if self.opened_by == "known":
            return True
        if principal.is_superuser:
            return self.opened_by != "none"
        return any(alternative <= principal.permissions for alternative in self.alternatives)


ROWS = [Row.of(line) for table in (ADMIN, API) for line in table.splitlines() if line.strip()]
OWN_ROWS = [Row.of(line) for line in OWN.strip().splitlines()]
